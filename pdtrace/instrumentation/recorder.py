"""Begins records, keeps the finished ones in a bounded ring, and sends them from a thread of its own.

Owns sampling, the ring, the drainer and every counter. What happens to the receiver never reaches the host program:
nothing here raises into it or waits for it, and what had to be dropped is counted and reported.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from pdtrace.instrumentation.clock import Clock, SystemClock
from pdtrace.instrumentation.context import parse, render
from pdtrace.instrumentation.encode import Problems, encode, encode_counters, encode_state
from pdtrace.instrumentation.export import Exporter, ExportError, Signal
from pdtrace.instrumentation.record import NO_RECORD, Record, Unrecorded, new_id, random_56_bits, reseed
from pdtrace.instrumentation.resource import Resource

log = logging.getLogger(__name__)

#: Records in one export request: 512 spans and more are what receivers like, and a body stays far below their limits.
_RECORDS_A_BODY: Final = 256
_MOST_PENDING_BYTES: Final = 32 << 20
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_GIVE_UP_AFTER_S: Final = 120.0
_REPORT_EVERY_S: Final = 10.0
_EXIT_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Stats:
    """What became of every request. begun = sampled_out + finished or still running records."""

    begun: int  #: asked for while enabled
    sampled_out: int
    submitted: int  #: finished
    dropped_full: int  #: finished while the ring was full: the oldest was given up
    exported: int  #: arrived at the receiver
    export_failed: int  #: given up: refused for good, or not taken for too long
    rejected_spans: int  #: arrived, and refused one by one
    retries: int
    waiting: int  #: in the ring or between two tries
    problems: dict[str, int] = field(default_factory=dict)  #: calls that made no sense, by kind


@dataclass(slots=True)
class _Body:
    signal: Signal
    data: bytes
    records: int
    since: float
    tries: int = 0


class Recorder:
    """Records requests of one process and exports them.

    Args:
        resource: Who reports.
        exporter: Where to.
        sample: Share of requests to record. With a caller's context its trace id decides, so that all processes keep
            the same requests, and a caller that does not record is followed.
        capacity: Finished records that may wait; beyond it the oldest is dropped and counted.
        clock: What stamps are read from.
        drain_every_s: How often the drainer looks.
        background: False: no thread; ``flush`` sends.
    """

    def __init__(
        self,
        resource: Resource,
        exporter: Exporter,
        *,
        sample: float = 1.0,
        capacity: int = 8192,
        clock: Clock | None = None,
        drain_every_s: float = 0.5,
        background: bool = True,
    ) -> None:
        self.enabled = True
        self.resource = resource
        self.clock: Clock = SystemClock() if clock is None else clock
        self._system = self.clock if isinstance(self.clock, SystemClock) else None
        self._now = self.clock.now_ns
        self._exporter = exporter
        self._attributes = resource.attributes()
        self._threshold = round(min(max(sample, 0.0), 1.0) * (1 << 56))
        self._always = self._threshold >= 1 << 56
        self._capacity = max(1, capacity)
        self._drain_every_s = drain_every_s
        self._background = background
        self._closed = False
        self._told: set[str] = set()
        self._fresh()
        _recorders.add(self)
        if background:
            self._start()

    def _fresh(self) -> None:
        """Counters at zero and nothing waiting: at the start, and in a forked child, whose parent sends what it had."""
        self._ring: deque[Record] = deque()
        self._pending: deque[_Body] = deque()
        self._begun, self._sampled_out, self._dropped = itertools.count(), itertools.count(), itertools.count()
        self._drained = 0
        self._exported = self._failed = self._rejected = self._retries = 0
        self._problems = Problems()
        self._not_before = 0.0
        self._started_ns = self._reported_ns = time.time_ns()
        self._sending = threading.Lock()
        self._wake = threading.Event()

    # ------------------------------------------------------------------------------------------------- the hot path

    def begin(
        self,
        request_id: str = "",
        *,
        traceparent: str | None = None,
        edge: bool = False,
        attempt: int = 0,
        at_ns: int | None = None,
    ) -> Record:
        """Start recording a request.

        Args:
            request_id: Ties the parts of a request that different processes see.
            traceparent: The caller's W3C context.
            edge: This process stands for the whole request: the record becomes its ``pdtrace.request`` span.
            attempt: From 0; counted by whoever retries.

        Returns:
            A record; one that keeps nothing if the request is not recorded. Never raises.
        """
        if not self.enabled:
            return NO_RECORD
        next(self._begun)
        parent = parse(traceparent) if traceparent else None
        if not self._always or (parent is not None and not parent.sampled):
            if parent is None:
                if random_56_bits() >= self._threshold:
                    next(self._sampled_out)
                    return Unrecorded(self, render(new_id(16), new_id(8), sampled=False))
            elif not parent.sampled or int.from_bytes(parent.trace_id[9:], "big") >= self._threshold:
                next(self._sampled_out)
                return Unrecorded(self, render(parent.trace_id, parent.span_id, sampled=False))
        return Record(
            self,
            self._now,
            None if self._system is None else self._system.offset_ns,
            request_id,
            parent,
            edge,
            attempt,
            self._now() if at_ns is None else at_ns,
        )

    def submit(self, record: Record) -> None:
        """Take a finished record; ``Record.finish`` calls it."""
        ring = self._ring
        if len(ring) >= self._capacity:
            try:
                ring.popleft()
                next(self._dropped)
            except IndexError:  # the drainer was faster
                pass
        ring.append(record)

    # ------------------------------------------------------------------------------------------------ the other side

    def worker_state(self, state: str) -> None:
        """Say that this worker is starting, ready, draining or dead."""
        if self.enabled:
            body = encode_state(state, self.clock.wall_ns(self._now()), self._attributes)
            self._pending.append(_Body("logs", body, 0, time.monotonic()))
            self._wake.set()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Send what is finished. False if not all of it left in time; it then stays waiting."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
                try:
                    self._send_what_waits()
                finally:
                    self._sending.release()
            if not self._ring and not self._pending:
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, max(0.02, self._not_before - time.monotonic())))

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """Stop recording, send what is left, close. Bounded in time; False if something was left behind."""
        self.enabled = False
        if self._closed:
            return True
        self._closed = True
        self._wake.set()
        all_sent = self.flush(timeout_s)
        if self._background and all_sent:
            self._report()
        left = sum(body.records for body in self._pending) + len(self._ring)
        self._failed += left
        self._drained += len(self._ring)
        self._ring.clear()
        self._pending.clear()
        self._exporter.close()
        return all_sent

    def stats(self) -> Stats:
        """Counters since the start of this process."""
        dropped = _value(self._dropped)
        return Stats(
            begun=_value(self._begun),
            sampled_out=_value(self._sampled_out),
            submitted=self._drained + len(self._ring) + dropped,
            dropped_full=dropped,
            exported=self._exported,
            export_failed=self._failed,
            rejected_spans=self._rejected,
            retries=self._retries,
            waiting=len(self._ring) + sum(body.records for body in list(self._pending)),
            problems=dict(self._problems.counts),
        )

    def drain(self) -> int:
        """Encode what is finished, into bodies that wait to be sent; how many records that were."""
        total = 0
        while self._ring:
            records: list[Record] = []
            while self._ring and len(records) < _RECORDS_A_BODY:
                try:
                    records.append(self._ring.popleft())
                except IndexError:
                    break
            self._drained += len(records)
            body = self._encoded(records)
            if body:
                self._pending.append(_Body("traces", body, len(records), time.monotonic()))
            total += len(records)
        waiting = sum(len(body.data) for body in self._pending)
        while waiting > _MOST_PENDING_BYTES:
            given_up = self._pending.popleft()
            waiting -= len(given_up.data)
            self._give_up(given_up, "the receiver has been away for too long")
        return total

    def _encoded(self, records: list[Record]) -> bytes:
        try:
            return encode(records, self._attributes, self._problems)[0]
        except Exception as problem:  # noqa: BLE001 - one record's values must not cost the others
            if len(records) > 1:
                return b"".join([self._encoded([record]) for record in records])
            self._failed += 1
            self._problems.add("cannot_encode")
            self._tell("cannot_encode", f"a record cannot be encoded: {problem!r}")
            return b""

    def _send_what_waits(self) -> None:
        self.drain()
        for kind, count in self._problems.counts.items():
            self._tell(kind, f"{count} call(s) made no sense: {kind.replace('_', ' ')}")
        while self._pending and time.monotonic() >= self._not_before:
            body = self._pending[0]
            try:
                rejected = self._exporter.export(body.signal, body.data)
            except ExportError as problem:
                if not problem.retry or time.monotonic() - body.since > _GIVE_UP_AFTER_S:
                    self._pending.popleft()
                    self._give_up(body, str(problem))
                    continue
                body.tries += 1
                self._retries += 1
                backoff_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (body.tries - 1)) * (
                    0.5 + random_56_bits() / 2**57
                )
                if problem.retry_after_s is not None:
                    backoff_s = min(problem.retry_after_s, _GIVE_UP_AFTER_S)
                self._not_before = time.monotonic() + backoff_s
                self._tell("unreachable", f"telemetry waits, its receiver does not take it: {problem}")
            except Exception as problem:  # noqa: BLE001 - an exporter of the host's own
                self._pending.popleft()
                self._give_up(body, f"{type(problem).__name__}: {problem}")
            else:
                self._pending.popleft()
                self._exported += body.records
                if rejected:
                    self._rejected += rejected
                    self._tell("rejected", f"the receiver rejected {rejected} item(s) of a request")

    def _give_up(self, body: _Body, why: str) -> None:
        self._failed += body.records
        self._tell("given_up", f"{body.records} record(s) were dropped: {why}")

    def _tell(self, kind: str, text: str) -> None:
        """Once a kind: a log that fills up is one more thing that an engine should not have to bear."""
        if kind not in self._told:
            self._told.add(kind)
            log.warning("pdtrace: %s (said once; Recorder.stats() counts)", text)

    # ------------------------------------------------------------------------------------------------------ the thread

    def _start(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.Thread(
            target=_drain_forever, args=(weakref.ref(self),), name="pdtrace-drain", daemon=True
        )
        self._thread.start()

    def _turn(self) -> None:
        """One look of the drainer."""
        with self._sending:
            if self._closed:
                return
            if self._system is not None:
                self._system.refresh()
            self._send_what_waits()
        if time.time_ns() - self._reported_ns > _REPORT_EVERY_S * 1e9:
            self._report()

    def _report(self) -> None:
        """Export the counters, if anything was counted: drops must be visible where the telemetry is."""
        self._reported_ns = time.time_ns()
        stats = self.stats()
        if not stats.begun:
            return
        fates = {
            "submitted": stats.submitted,
            "sampled_out": stats.sampled_out,
            "dropped_full": stats.dropped_full,
            "export_failed": stats.export_failed,
        }
        body = encode_counters(fates, self._started_ns, self._reported_ns, self._attributes)
        with self._sending:
            try:
                self._exporter.export("metrics", body)
            except Exception as problem:  # noqa: BLE001 - the next report carries the same counters
                log.debug("pdtrace: counters were not taken: %s", problem)

    def _after_fork(self) -> None:
        self._fresh()
        self._attributes = self.resource.attributes()
        if self._background and not self._closed:
            self._start()


def _drain_forever(of: weakref.ref[Recorder]) -> None:
    while True:
        recorder = of()
        if recorder is None or recorder._closed:
            return
        wake, every_s = recorder._wake, recorder._drain_every_s
        del recorder  # a recorder that nobody holds any more must be free to go
        wake.wait(every_s)
        wake.clear()
        recorder = of()
        if recorder is None:
            return
        try:
            recorder._turn()
        except Exception as problem:  # noqa: BLE001 - the host program must not hear of it, and the next turn may work
            recorder._tell("drainer", f"the drainer failed: {problem!r}")
        del recorder


def _value(count: itertools.count[int]) -> int:
    """What ``count`` would give next, without taking it."""
    return int(repr(count)[len("count(") : -1])


class _Nowhere:
    def export(self, signal: Signal, body: bytes) -> int | None:
        return None

    def close(self) -> None:
        pass


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()

_default: Recorder | None = None


def default_recorder() -> Recorder:
    """The process's recorder: what ``set_default`` was given, else one that is off."""
    global _default  # noqa: PLW0603 - one a process, by its nature
    if _default is None:
        _default = Recorder(Resource(), _Nowhere(), background=False)
        _default.enabled = False
    return _default


def set_default(recorder: Recorder) -> None:
    """Make ``recorder`` the process's own."""
    global _default  # noqa: PLW0603
    _default = recorder


def _in_child() -> None:
    reseed()
    for recorder in list(_recorders):
        recorder._after_fork()


@atexit.register
def _at_exit() -> None:
    for recorder in list(_recorders):
        if recorder._background:
            recorder.shutdown(_EXIT_TIMEOUT_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
