"""Python's cycle collector, kept out of the way: telemetry in memory holds no cycles, and walking it costs a quarter.

Owns the two switches. Cycles of other code (exceptions, servers) are still collected in between.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collection inside. Threads may overlap: whoever found it on turns it on again, at the worst too early."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def spare_what_is_loaded() -> None:
    """Leave modules and whatever else is there now out of all later collections; for a process that has just started."""
    gc.collect()
    gc.freeze()
