"""Finished records that wait for the drainer: as many as fit, then the oldest go.

Owns the counters that the hot path moves. They are ``itertools.count``: one step is one bytecode, so no thread's step is
lost and nobody waits for a lock.
"""

from __future__ import annotations

import itertools
from collections import deque

from pdtrace.instrumentation.clock import Clock
from pdtrace.instrumentation.record import Record


class Ring:
    """What records are begun for and handed to.

    Args:
        clock: What their stamps are of.
        capacity: Records that may wait.
    """

    def __init__(self, clock: Clock, capacity: int) -> None:
        self.clock = clock
        self.begun = itertools.count()
        self.sampled_out = itertools.count()
        self.dropped = itertools.count()
        self.refused = itertools.count()
        self.said_late = itertools.count()
        self._waiting: deque[Record] = deque()
        self._capacity = max(1, capacity)
        #: Takes a finished record; ``Record.finish`` calls it.
        self.submit = self._keep

    def _keep(self, record: Record) -> None:
        waiting = self._waiting
        if len(waiting) >= self._capacity:
            try:
                waiting.popleft()
                next(self.dropped)
            except IndexError:  # the drainer was faster
                pass
        waiting.append(record)

    def _refuse(self, record: Record) -> None:
        next(self.refused)

    def late(self) -> None:
        """Count what was said of a record that was finished already."""
        next(self.said_late)

    def close(self) -> None:
        """Take nothing from here on: after a shutdown, and in a child for what its parent began."""
        self.submit = self._refuse

    def take(self, most: int) -> list[Record]:
        """The oldest records, at most ``most``."""
        taken: list[Record] = []
        try:
            while len(taken) < most:
                taken.append(self._waiting.popleft())
        except IndexError:
            pass
        return taken

    def __len__(self) -> int:
        return len(self._waiting)


def value(count: itertools.count[int]) -> int:
    """What ``count`` would give next, without taking it."""
    return int(repr(count)[len("count(") : -1])
