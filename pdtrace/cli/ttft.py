"""`pdtrace ttft`: TTFT percentiles and the mean decomposition, per group.

Owns the columns for people. The numbers are the reader's.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import filter_options, source_options
from pdtrace.cli.output import duration, moment, print_json_lines, print_table, stages, text
from pdtrace.cli.sources import open_reader
from pdtrace.reader.contract import Filters


@click.command("ttft")
@click.option(
    "--by",
    default="",
    metavar="A,B",
    help="Dimensions: prefill_worker, decode_worker, link, model, mode, run, outcome, minute, bucket:SECONDS.",
)
@source_options
@filter_options
def command(by: str, db: Path | None, url: str | None, as_json: bool, filters: Filters) -> None:
    """TTFT and where it went, per group; requests without a first token are not in it."""
    dimensions = [part.strip() for part in by.split(",") if part.strip()]
    with open_reader(db, url) as reader:
        groups = reader.ttft(dimensions, filters)
    if as_json:
        print_json_lines(groups)
        return
    if not groups:
        print("no request with a first token matches")
        return
    names = [dimension.partition(":")[0] for dimension in dimensions]
    print_table(
        (*names, "requests", "mean", "p50", "p90", "p95", "p99", "mean decomposition", "decomposition at p99"),
        [
            (
                *(moment(g[name]) if name in ("minute", "bucket") else text(g[name]) for name in names),
                str(g["requests"]),
                *(duration(g[f"{statistic}_ns"]) for statistic in ("mean", "p50", "p90", "p95", "p99")),
                stages(g["sections"]),
                stages(g["p99_sections"]),
            )
            for g in groups
        ],
        right=range(len(names), len(names) + 6),
    )
