"""Encoded requests on their way to the receiver: sent in order, again after a failure, given up in the end.

Owns retrying and what it counts. Used under the recorder's lock, by the drainer or by whoever flushes; sends nothing of
its own accord and never raises.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pdtrace.instrumentation.export import Exporter, ExportError, Signal
from pdtrace.instrumentation.record import random_64_bits

log = logging.getLogger(__name__)

_MOST_WAITING_BYTES: Final = 32 << 20
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_GIVE_UP_AFTER_S: Final = 120.0


@dataclass(slots=True)
class _Body:
    signal: Signal
    content: bytes
    records: int
    since_s: float
    tries: int = 0


class Outbox:
    """What waits to be sent to one exporter."""

    def __init__(self, exporter: Exporter, tell: Callable[[str, str], None]) -> None:
        self.exported = 0  #: records that arrived
        self.failed = 0  #: records given up
        self.rejected = 0  #: spans, log records and points that arrived and were refused one by one
        self.retries = 0
        self._exporter = exporter
        self._tell = tell
        self._waiting: deque[_Body] = deque()
        self._not_before_s = 0.0  #: monotonic

    def put(self, signal: Signal, content: bytes, records: int = 0) -> None:
        """Add one export request that holds ``records`` records; too many bytes, and the oldest request goes."""
        self._waiting.append(_Body(signal, content, records, time.monotonic()))
        held_bytes = sum(len(body.content) for body in list(self._waiting))
        while held_bytes > _MOST_WAITING_BYTES and len(self._waiting) > 1:
            oldest = self._waiting.popleft()
            held_bytes -= len(oldest.content)
            self._give_up(oldest, "the receiver has been away for too long")

    def holds(self, signal: Signal) -> bool:
        """Whether a request of that kind waits."""
        return any(body.signal == signal for body in list(self._waiting))

    @property
    def records(self) -> int:
        """Records that wait."""
        return sum(body.records for body in list(self._waiting))

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def wait_s(self) -> float:
        """Seconds until a send may be tried."""
        return max(0.0, self._not_before_s - time.monotonic())

    def hurry(self) -> None:
        """Try at once, whatever was agreed: the process ends."""
        self._not_before_s = 0.0

    def send(self, until_s: float) -> None:
        """Send what waits, until it is all gone, the receiver wants a pause, or monotonic time ``until_s``."""
        while self._waiting and self.wait_s == 0.0:
            body = self._waiting[0]
            try:
                rejected = self._exporter.export(body.signal, body.content)
            except ExportError as problem:
                self._failed_to_send(body, problem)
            except Exception as problem:  # noqa: BLE001 - an exporter of the host's own
                self._waiting.popleft()
                self._give_up(body, f"{type(problem).__name__}: {problem}")
            else:
                self._waiting.popleft()
                self.exported += body.records
                if rejected:
                    self.rejected += rejected
                    self._tell("rejected", f"the receiver rejected {rejected} item(s) of a request")
            if time.monotonic() > until_s:
                return

    def _failed_to_send(self, body: _Body, problem: ExportError) -> None:
        now_s = time.monotonic()
        if not problem.retry or now_s - body.since_s > _GIVE_UP_AFTER_S:
            self._waiting.popleft()
            self._give_up(body, str(problem))
            return
        body.tries += 1
        self.retries += 1
        wait_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(body.tries - 1, 16))
        wait_s *= 0.5 + random_64_bits() / 2**65
        if problem.retry_after_s is not None:
            wait_s = min(problem.retry_after_s, _GIVE_UP_AFTER_S)
        self._not_before_s = now_s + wait_s
        self._tell("unreachable", f"telemetry waits, its receiver does not take it: {problem}")

    def give_all_up(self, why: str) -> None:
        """Forget what waits, counted."""
        while self._waiting:
            self._give_up(self._waiting.popleft(), why)

    def _give_up(self, body: _Body, why: str) -> None:
        self.failed += body.records
        if body.records:
            self._tell("given_up", f"{body.records} record(s) were dropped: {why}")
        else:
            log.debug("pdtrace: a %s request was dropped: %s", body.signal, why)

    def close(self) -> None:
        """Close the exporter."""
        try:
            self._exporter.close()
        except Exception as problem:  # noqa: BLE001 - an exporter of the host's own
            log.debug("pdtrace: the exporter could not be closed: %s", problem)
