"""`pdtrace trace ID`: one request in full, or the list where an id names several.

Owns the page for people. The JSON is the reader's row.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import source_options
from pdtrace.cli.output import duration, moment, print_json, print_table, stages, text
from pdtrace.cli.rows import contract_row, summary_row
from pdtrace.cli.sources import open_reader
from pdtrace.reader.contract import Row


@click.command("trace")
@click.argument("any_id", metavar="ID")
@source_options
def command(any_id: str, db: Path | None, url: str | None, as_json: bool) -> None:
    """Show the request with this request id, alias, trace id or uid; several are listed."""
    with open_reader(db, url) as reader:
        found = reader.request(any_id)
    if not found:
        raise click.ClickException(f"no request {any_id!r}; `pdtrace requests` lists the ids that are stored")
    if as_json:
        print_json(contract_row(found[0]) if len(found) == 1 else {"requests": [summary_row(row) for row in found]})
    elif len(found) == 1:
        _print_request(found[0])
    else:
        print(f"{len(found)} requests have this id; ask for one by its request id or uid")
        print_table(
            ("arrived", "request", "uid", "outcome", "TTFT"),
            [
                (moment(r["window"][0]), text(r["request_id"]), r["uid"], r["outcome"], duration(r["ttft_ns"]))
                for r in found
            ],
            right=(4,),
        )


def _print_request(row: Row) -> None:
    start_ns, first_token_ns = row["window"]
    print(f"request {text(row['request_id'])}  uid {row['uid']}  traces {', '.join(row['trace_ids']) or '-'}")
    print(f"arrived {moment(start_ns)}, first token {moment(first_token_ns)}, end {moment(row.get('end_ns'))}")
    print(
        f"model {text(row['model'])}, outcome {row['outcome']}, mode {row['mode']}, "
        f"P {text(row['prefill_worker'])}, D {text(row['decode_worker'])}, attempts {row['attempts']}, "
        f"stitched by {row['stitched_by']}"
    )
    print(
        f"tokens: input {text(row['input_tokens'])}, cached {text(row['cached_tokens'])}, "
        f"output {text(row['output_tokens'])}"
    )
    print(f"\nTTFT {duration(row['ttft_ns'])} (basis: {text(row['ttft_basis'])})")
    if first_token_ns is None:
        print("there was no first token; charged from arrival to the end (or to the last that is known):")
    total = row["ttft_ns"] or 0
    print_table(
        ("section", "from", "charged", "share"),
        [
            (
                stage,
                duration(from_ns - start_ns),
                duration(to_ns - from_ns),
                f"{100 * (to_ns - from_ns) / total:.0f} %" if total else "-",
            )
            for stage, from_ns, to_ns in row["section_list"] or row.get("section_list_to_end") or []
        ],
        right=(1, 2, 3),
    )
    print(f"hidden: {stages(row['hidden'], most=20)}")
    print(f"saving: {stages(row['saving'], most=20)}")
    print("\nactivities")
    print_table(
        ("stage", "from", "length", "worker", "role", "attempt", "span"),
        [
            (
                activity["stage"],
                duration(activity["start_ns"] - start_ns),
                duration(activity["end_ns"] - activity["start_ns"]) if activity["end_ns"] else "open",
                text(activity["worker"]),
                text(activity["role"]),
                str(activity["attempt"]),
                text(activity["span_id"]),
            )
            for activity in row["activities"]
        ],
        right=(1, 2, 5),
    )
    for claim in row["ttft_claims"]:
        print(f"reported TTFT: {claim['name']} {duration(claim['ttft_ns'])} ({claim['measures']})")
    for item in row["evidence"]:
        shown = duration(item["value"]) if item["unit"] == "ns" else f"{item['value']} {item['unit']}".strip()
        print(f"evidence: {item['name']} = {shown}: {item['text']}")
    for warning in row["warning_list"]:
        print(f"warning {warning['code']}: {warning['text']}")
