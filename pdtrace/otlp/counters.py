"""What the receivers count about themselves; read by the service's metrics and health pages.

Owns one thread-safe table of numbers. Does not export it.
"""

from __future__ import annotations

import threading
from typing import NamedTuple


class CounterKey(NamedTuple):
    """What one number counts."""

    name: str  #: requests, bytes, accepted, rejected, refused (requests), decode_seconds
    transport: str  #: grpc or http
    signal: str  #: traces, logs, metrics, or "" where it is not known
    reason: str = ""  #: of rejected and refused


class Counters:
    """Monotonic sums since the process started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[CounterKey, float] = {}

    def add(self, name: str, transport: str, signal: str, amount: float = 1, reason: str = "") -> None:
        """Add ``amount`` to one counter; a counter exists from its first increment on."""
        key = CounterKey(name, transport, signal, reason)
        with self._lock:
            self._sums[key] = self._sums.get(key, 0) + amount

    def snapshot(self) -> dict[CounterKey, float]:
        """A copy of all counters at one moment."""
        with self._lock:
            return dict(self._sums)

    def total(self, name: str, reason: str | None = None) -> float:
        """Sum of one counter over transports and signals, and over reasons unless one is given."""
        return sum(
            amount
            for key, amount in self.snapshot().items()
            if key.name == name and (reason is None or key.reason == reason)
        )
