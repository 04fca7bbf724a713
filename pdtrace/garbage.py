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
    """Collect less: never what is there now (modules), and seldom what has lived for long (telemetry in memory).

    For a process that has just started. With Python's own thresholds (700, 10, 10) every hundred requests walk all
    spans in memory, at 3 us of each span's 50.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 50)
