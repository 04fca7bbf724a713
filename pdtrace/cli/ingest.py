"""`pdtrace ingest PATH...`: files of telemetry into a store.

Owns the totals that are printed. Kinds of files are pdtrace.importers', the way into the store is the pipeline's.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from pdtrace.cli.options import clock_shift_option, store_option
from pdtrace.cli.output import print_json
from pdtrace.cli.sources import open_store
from pdtrace.store.contract import Store

#: Rejections and skipped files told one by one; all are counted, and `pdtrace doctor` has rejections by reason.
MOST_TOLD: Final = 10


@click.command("ingest")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@store_option
@click.option("--run", help="Label of the requests of this ingest.")
@clock_shift_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(paths: tuple[str, ...], db: Path, run: str | None, max_clock_shift: float, as_json: bool) -> None:
    """Load files or folders ("-" is stdin) into the store; the kind of each file is detected.

    Kinds: OTLP as JSON lines or length-delimited protobuf, Dynamo request trace, TensorRT-LLM perf metrics, AIPerf;
    plain or .gz. A bad line is counted and reported, the rest loads.
    """
    for path in paths:
        if path != "-" and not Path(path).exists():
            raise click.ClickException(f"{path}: no such file or folder; nothing was loaded")
    started = time.perf_counter()
    with open_store(db) as store:
        totals = load(store, paths, run=run, max_clock_shift_ns=round(max_clock_shift * 1e6))
    totals["seconds"] = round(time.perf_counter() - started, 3)
    if as_json:
        print_json(totals)
        return
    print(
        f"{totals['spans']} spans, {totals['records']} records, {totals['logs']} logs and {totals['points']} points "
        f"made {totals['requests']} requests in {totals['seconds']:.1f} s"
    )
    print(f"{totals['duplicates']} duplicates, {totals['conflicts']} conflicts, {totals['rejected']} rejected")
    for item in totals["rejections"]:
        print(f"  rejected {item['count']} {item['what']} at {item['where']}: {item['reason']}")
    for path, reason in list(totals["skipped"].items())[:MOST_TOLD]:
        print(f"skipped {path}: {reason}")
    if len(totals["skipped"]) > MOST_TOLD:
        print(f"skipped {len(totals['skipped'])} files in all; --json lists them")


def load(store: Store, paths: tuple[str, ...], *, run: str | None, max_clock_shift_ns: int) -> dict[str, Any]:
    """Load ``paths`` and derive their requests; returns the totals that the command prints, without seconds."""
    from pdtrace import garbage
    from pdtrace.importers import FileImport
    from pdtrace.pipeline import Pipeline

    garbage.spare_what_is_loaded()
    pipeline = Pipeline(store, max_clock_shift_ns=max_clock_shift_ns, run=run)
    counts: Counter[str] = Counter()
    skipped: dict[str, str] = {}
    rejections: list[dict[str, Any]] = []
    for path in paths:
        source = FileImport(path)
        for batch in source.batches():
            added = pipeline.add(batch)
            counts["spans"] += len(added.spans)
            counts["records"] += len(added.records)
            counts["duplicates"] += added.duplicates
            counts["conflicts"] += added.conflicts
            counts["logs"] += len(batch.logs)
            counts["points"] += len(batch.points)
            counts["rejected"] += sum(rejection.count for rejection in batch.rejections)
            rejections += [
                {"what": r.what, "where": r.where, "reason": r.reason, "count": r.count}
                for r in batch.rejections[: max(0, MOST_TOLD - len(rejections))]
            ]
        skipped |= source.skipped
    requests = pipeline.derive(None)
    return {
        "spans": counts["spans"],
        "duplicates": counts["duplicates"],
        "rejected": counts["rejected"],
        "logs": counts["logs"],
        "points": counts["points"],
        "records": counts["records"],
        "requests": requests,
        "skipped": skipped,
        "conflicts": counts["conflicts"],
        "rejections": rejections,
    }
