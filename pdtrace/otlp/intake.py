"""From a decompressed request body to the sink: what gRPC and HTTP do alike.

Owns decoding, counting and the words of partial_success. Does not know transports, and not what the sink does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from pdtrace.model import Batch, Rejection
from pdtrace.otlp.counters import Counters
from pdtrace.otlp.decode import DEFAULT_LIMITS, Encoding, Signal, decode
from pdtrace.otlp.faults import Limits, Undecodable

#: What one rejected item of a signal is called in Rejection.what.
ITEM: Final[dict[str, str]] = {"traces": "span", "logs": "log", "metrics": "point"}
_MESSAGE_BYTES: Final = 1024


class Overloaded(Exception):
    """The service cannot take more right now; the sender should come again after ``retry_after_s`` seconds."""

    def __init__(self, retry_after_s: float, reason: str = "pdtrace is overloaded") -> None:
        super().__init__(f"{reason}; try again in {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class Sink(Protocol):
    """Where accepted telemetry goes."""

    def accept(self, signal: Signal, body: bytes, encoding: Encoding, batch: Batch) -> None:
        """Return only when what was accepted cannot be lost by a crash of the process; raise Overloaded instead."""


class Partial(NamedTuple):
    """What partial_success says: rejected items (0 = a warning only) and why."""

    rejected: int
    message: str


class Intake:
    """Decodes, hands to the sink and counts; called from many threads."""

    def __init__(
        self,
        sink: Sink,
        counters: Counters,
        limits: Limits = DEFAULT_LIMITS,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.counters = counters
        self._sink = sink
        self._limits = limits
        self._clock_ns = clock_ns

    def take(self, signal: Signal, body: bytes, encoding: Encoding, transport: str) -> Partial | None:
        """Accept one request; None if all of it was kept as it came.

        Raises:
            Undecodable: not such a request; the sender must not repeat it.
            Overloaded: from the sink; nothing was kept and the sender should repeat it.
        """
        counters = self.counters
        counters.add("requests", transport, signal)
        counters.add("bytes", transport, signal, len(body))
        before = time.thread_time()
        try:
            batch = decode(
                signal, body, encoding=encoding, received_ns=self._clock_ns(), where=transport, limits=self._limits
            )
        except Undecodable:
            counters.add("refused", transport, signal, reason="undecodable")
            raise
        finally:
            counters.add("decode_seconds", transport, signal, time.thread_time() - before)
        kept = len(batch.spans) + len(batch.logs) + len(batch.points)
        if kept or batch.rejections:
            try:
                self._sink.accept(signal, body, encoding, batch)
            except Overloaded:
                counters.add("refused", transport, signal, reason="overloaded")
                raise
        counters.add("accepted", transport, signal, kept)
        for rejection in batch.rejections:
            if rejection.what == ITEM[signal]:
                counters.add("rejected", transport, signal, rejection.count, rejection.reason.partition(" (first: ")[0])
        return _partial(signal, batch.rejections)


def _partial(signal: Signal, rejections: list[Rejection]) -> Partial | None:
    if not rejections:
        return None
    rejected = sum(r.count for r in rejections if r.what == ITEM[signal])
    ordered = sorted(rejections, key=lambda r: r.what != ITEM[signal])
    text = "; ".join(f"{r.count} {r.what}: {r.reason}" for r in ordered)
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > _MESSAGE_BYTES:
        text = encoded[: _MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "..."
    return Partial(rejected, text)
