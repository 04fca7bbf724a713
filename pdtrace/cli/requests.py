"""`pdtrace requests`: a line per request.

Owns the columns for people. The JSON rows are in rows.py, the filters in options.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import filter_options, source_options
from pdtrace.cli.output import duration, moment, print_json_lines, print_table, stages, text
from pdtrace.cli.rows import contract_row
from pdtrace.cli.sources import open_reader
from pdtrace.reader.contract import Filters


@click.command("requests")
@source_options
@filter_options
@click.option(
    "--order-by", default="t0", show_default=True, help="t0, ttft, last, input_tokens, output_tokens or a stage."
)
@click.option("--descending", is_flag=True, help="Largest first; unknowns stay last.")
@click.option("--search", help="A request id, alias, trace id or uid, or the beginning of one (4 characters).")
def command(
    db: Path | None,
    url: str | None,
    as_json: bool,
    filters: Filters,
    order_by: str,
    descending: bool,
    search: str | None,
) -> None:
    """List requests, a line each."""
    with open_reader(db, url) as reader:
        rows = reader.requests(filters, order_by=order_by, descending=descending, search=search)
    if as_json:
        print_json_lines(contract_row(row) for row in rows)
        return
    if not rows:
        print("no request matches")
        return
    print_table(
        ("arrived", "request", "outcome", "mode", "TTFT", "P", "D", "in", "out", "where the time went", "warnings"),
        [
            (
                moment(row["window"][0]),
                text(row["request_id"]),
                text(row["outcome"]),
                text(row["mode"]),
                duration(row["ttft_ns"]),
                text(row["prefill_worker"]),
                text(row["decode_worker"]),
                text(row["input_tokens"]),
                text(row["output_tokens"]),
                stages(row["sections"] or row.get("sections_to_end")),
                ", ".join(row["warnings"]) or "-",
            )
            for row in rows
        ],
        right=(4, 7, 8),
    )
