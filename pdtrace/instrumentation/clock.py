"""Stamps: monotonic on the hot path, Unix time when they are encoded.

One pair of (wall, monotonic) readings ties the two in a process. It is taken anew each minute, but a record keeps the
pair it began with, so its durations are the monotonic clock's whatever NTP does meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol

_ANCHOR_EVERY_NS: Final = 60_000_000_000


class Clock(Protocol):
    """What a recorder stamps with."""

    @property
    def now_ns(self) -> Callable[[], int]:
        """Reads the clock; any origin."""

    def wall_ns(self, now_ns: int) -> int:
        """Unix ns of a stamp."""


class SystemClock:
    """time.monotonic_ns, and the Unix time it belongs to."""

    now_ns: Final = staticmethod(time.monotonic_ns)

    def __init__(self) -> None:
        self.offset_ns = 0  #: Unix ns minus monotonic ns
        self._anchored_ns = 0
        self.anchor()

    def wall_ns(self, now_ns: int) -> int:
        """Unix ns of a monotonic stamp, by the present anchor."""
        return now_ns + self.offset_ns

    def anchor(self) -> None:
        """Read both clocks: the wall between two monotonic readings, of several tries the closest."""
        tries = []
        for _ in range(5):
            before_ns = time.monotonic_ns()
            wall_ns = time.time_ns()
            after_ns = time.monotonic_ns()
            tries.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
        self.offset_ns = min(tries)[1]
        self._anchored_ns = time.monotonic_ns()

    def refresh(self) -> None:
        """Anchor again if a minute has passed."""
        if time.monotonic_ns() - self._anchored_ns > _ANCHOR_EVERY_NS:
            self.anchor()
