"""`pdtrace rederive`: every derived table again, from the raw telemetry.

Owns what is printed. The work is the pipeline's.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from pdtrace.cli.options import clock_shift_option, store_option
from pdtrace.cli.output import print_json
from pdtrace.cli.sources import must_exist, open_store


@click.command("rederive")
@store_option
@clock_shift_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(db: Path, max_clock_shift: float, as_json: bool) -> None:
    """Rebuild every derived table of a store that no service holds."""
    from pdtrace.pipeline import Pipeline

    must_exist(db)
    started = time.perf_counter()
    with open_store(db) as store:
        requests = Pipeline(store, max_clock_shift_ns=round(max_clock_shift * 1e6)).rederive()
    seconds = round(time.perf_counter() - started, 3)
    if as_json:
        print_json({"requests": requests, "seconds": seconds})
    else:
        print(f"{requests} requests derived in {seconds:.1f} s")
