"""Between the receivers and the writer: what was acknowledged and is not committed yet.

Owns the bound on it, when a sender is asked to come back, and that an acknowledgement follows the write-ahead log.
Does not write to the store.

    receiver --accept--> write-ahead log (fsync) --> queue --take--> writer --done--> log may forget it
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from pdtrace.model import Batch
from pdtrace.otlp.decode import Encoding, Signal
from pdtrace.otlp.intake import Overloaded

#: Encoded bytes that may wait. Decoded they take about eight times as much memory.
DEFAULT_MAX_BYTES: Final = 64 * 1024 * 1024

_RETRY_S: Final = (0.2, 5.0)  # the Python exporter gives up after 10 s in all, so never ask for more than a few


class Log(Protocol):
    """What the inbox needs of the write-ahead log."""

    def append(self, signal: Signal, encoding: Encoding, received_ns: int, body: bytes) -> int:
        """Store the body so that a crash cannot lose it; returns its position."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One accepted export request."""

    batch: Batch
    position: int  #: in the write-ahead log
    size_bytes: int  #: of the encoded body
    received_ns: int


class Inbox:
    """The receivers' sink. Thread-safe: many receivers, one writer."""

    def __init__(self, log: Log, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._queue: deque[Arrival] = deque()
        self._bytes = 0  # accepted and not done: queued, in the log's hands, or with the writer
        self._drained_per_s = 0.0
        self._last_done = time.monotonic()
        self._closed = False
        self.refused = 0  #: export requests answered with "come back later"

    def accept(self, signal: Signal, body: bytes, encoding: Encoding, batch: Batch) -> None:
        """Keep ``body`` safe and queue ``batch``.

        Raises:
            Overloaded: Too much is waiting, the write-ahead log cannot be written, or the service is stopping; says
                when to come back.
        """
        received_ns = time.time_ns()
        size_bytes = len(body)
        with self._changed:
            # A request larger than the whole bound is taken when nothing else waits; it could never enter otherwise.
            full = self._bytes > 0 and self._bytes + size_bytes > self._max_bytes
            if full or self._closed:
                self.refused += 1
                raise Overloaded(self._retry_after_s())
            self._bytes += size_bytes
        try:
            position = self._log.append(signal, encoding, received_ns, body)
        except BaseException as problem:
            with self._changed:
                self._bytes -= size_bytes
                self.refused += 1
            if isinstance(problem, OSError):  # a full disk: the sender keeps it for now
                raise Overloaded(_RETRY_S[1], f"the write-ahead log cannot be written ({problem})") from problem
            raise
        with self._changed:
            self._queue.append(Arrival(batch, position, size_bytes, received_ns))
            self._changed.notify()

    def requeue(self, arrival: Arrival) -> None:
        """Queue what the write-ahead log gave back at start; never refused."""
        with self._changed:
            self._bytes += arrival.size_bytes
            self._queue.append(arrival)
            self._changed.notify()

    def take(self, *, max_spans: int, wait_s: float) -> list[Arrival]:
        """What has arrived, oldest first, up to about ``max_spans`` spans; waits up to ``wait_s`` for the first."""
        with self._changed:
            if not self._queue and not self._closed:
                self._changed.wait(wait_s)
            taken: list[Arrival] = []
            spans = 0
            while self._queue and spans < max_spans:
                arrival = self._queue.popleft()
                taken.append(arrival)
                spans += len(arrival.batch.spans)
            return taken

    def done(self, arrivals: Sequence[Arrival]) -> None:
        """These are committed; measures how fast that goes."""
        size_bytes = sum(arrival.size_bytes for arrival in arrivals)
        now = time.monotonic()
        with self._changed:
            self._bytes -= size_bytes
            rate = size_bytes / max(now - self._last_done, 1e-3)
            self._drained_per_s = rate if self._drained_per_s == 0 else 0.8 * self._drained_per_s + 0.2 * rate
            self._last_done = now

    def close(self) -> None:
        """Refuse what comes from now on; what is queued can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def waiting_bytes(self) -> int:
        """Encoded bytes accepted and not committed."""
        with self._changed:
            return self._bytes

    def oldest_received_ns(self) -> int | None:
        """When the oldest queued request came, Unix ns; None if nothing is queued."""
        with self._changed:
            return self._queue[0].received_ns if self._queue else None

    def _retry_after_s(self) -> float:
        """The time in which half of what waits is drained at the measured rate."""
        least, most = _RETRY_S
        if self._drained_per_s <= 0:
            return 1.0
        return min(most, max(least, self._bytes / 2 / self._drained_per_s))
