"""`pdtrace doctor`: what was seen, what is missing, what can be believed.

Owns the page for people. The findings are the reader's.
"""

from __future__ import annotations

from pathlib import Path

import click

from pdtrace.cli.options import source_options
from pdtrace.cli.output import duration, moment, print_json, text
from pdtrace.cli.sources import open_reader


@click.command("doctor")
@source_options
def command(db: Path | None, url: str | None, as_json: bool) -> None:
    """What was seen, what each source could not tell, clock offsets and ingest health."""
    with open_reader(db, url) as reader:
        report = reader.doctor()
    if as_json:
        print_json(report)
        return
    store, ingest = report["store"], report["ingest"]
    print(f"store {store['path']}: {store['requests']} requests, {store['bytes']} bytes,")
    print(f"  from {moment(store['first_ns'])} to {moment(store['last_ns'])}")
    kinds = ("spans", "records", "logs", "points", "duplicates", "conflicts", "rejected")
    print("ingest: " + ", ".join(f"{text(ingest.get(kind))} {kind}" for kind in kinds))
    for item in ingest["rejections"]:
        print(f"  rejected {item['count']} {item['what']} at {item['where']}: {item['reason']}")
    for item in report["dialects"]:
        print(f"dialect {item['dialect']}: {item['requests']} requests, {text(item['spans'])} spans")
        for blind in item["blind_spots"]:
            print(f"  cannot tell: {blind}")
    for clock in report["clocks"]:
        bounds = f"{duration(clock['low_ns'])} to {duration(clock['high_ns'])}"
        moved = f"{duration(clock['applied_min_ns'])} to {duration(clock['applied_max_ns'])}"
        print(f"clock {clock['clock']} against {clock['reference']}: offset {bounds}, moved by {moved}")
    for warning in report["warnings"]:
        print(f"warning {warning['code']}: {warning['requests']} requests, e.g. {warning['example']}")
    for missing in report["missing"]:
        print(f"missing: {missing}")
