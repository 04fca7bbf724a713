"""`pdtrace ledger`: what became of every offered request.

Owns the table for people. The counts are the reader's.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import filter_options, source_options
from pdtrace.cli.output import duration, print_json, print_table, text
from pdtrace.cli.sources import open_reader
from pdtrace.reader.contract import Filters


@click.command("ledger")
@source_options
@filter_options
def command(db: Path | None, url: str | None, as_json: bool, filters: Filters) -> None:
    """Offered requests by outcome; the outcomes sum to the offered."""
    from pdtrace.outcomes import OUTCOMES

    with open_reader(db, url) as reader:
        ledger = reader.ledger(filters)
    if as_json:
        print_json(ledger)
        return
    offered = ledger["offered"]
    rows = [(name, str(ledger[name]), f"{100 * ledger[name] / offered:.1f} %") for name in OUTCOMES if ledger[name]]
    print_table(("outcome", "requests", "share"), [*rows, ("offered", str(offered), "")], right=(1, 2))
    print(f"wasted: {duration(ledger['wasted_ns'])}, GPU-seconds {text(ledger['wasted_gpu_seconds'])}")
    if ledger.get("offered_is_lower_bound"):
        print("offered is a lower bound: no client file says what was sent")
