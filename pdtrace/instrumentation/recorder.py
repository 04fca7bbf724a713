"""Begins records, and has the finished ones encoded and sent from a thread of its own.

Owns sampling, the drainer and the life of both: start, fork, shutdown. What happens to the receiver never reaches the
host program: nothing here raises into it or waits for it, and what had to be dropped is counted and reported.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Final

from pdtrace.instrumentation.clock import Clock, SystemClock
from pdtrace.instrumentation.context import parse, render
from pdtrace.instrumentation.encode import Problems, encode, encode_counters, encode_state
from pdtrace.instrumentation.export import Exporter, Signal
from pdtrace.instrumentation.outbox import Outbox
from pdtrace.instrumentation.record import NO_RECORD, Record, Unrecorded, new_id, random_64_bits, reseed
from pdtrace.instrumentation.resource import Resource
from pdtrace.instrumentation.ring import Ring, value

log = logging.getLogger(__name__)

#: Records in one export request: 512 spans and more are what receivers like, and a body stays far below their limits.
_RECORDS_A_BODY: Final = 256
_ALL: Final = 1 << 64
_REPORT_EVERY_NS: Final = 10_000_000_000
_EXIT_TIMEOUT_S: Final = 3.0
#: How long one turn of the drainer may send before it looks at the ring again.
_LONGEST_TURN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Stats:
    """What became of every request of this process.

    begun = sampled_out + submitted + what still runs; submitted = dropped_full + exported + export_failed + waiting.
    """

    begun: int  #: asked for while enabled
    sampled_out: int
    submitted: int  #: finished
    dropped_full: int  #: waited while the ring overflowed; the oldest go
    exported: int  #: arrived at the receiver
    export_failed: int  #: given up: refused for good, not taken for too long, or finished after the shutdown
    rejected_spans: int  #: arrived, and refused one by one
    retries: int
    waiting: int  #: in the ring or between two tries
    problems: dict[str, int] = field(default_factory=dict)  #: calls that made no sense, by kind


class Recorder:
    """Records requests of one process and exports them.

    Args:
        resource: Who reports.
        exporter: Where to.
        sample: Share of requests to record, 0 to 1. With a caller's context its trace id decides, as OpenTelemetry's
            TraceIdRatioBased would, so that processes with one share keep the same requests; a caller that does not
            record is followed.
        capacity: Finished records that may wait; beyond it the oldest is dropped and counted.
        clock: What stamps are read from; None = a SystemClock.
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
        self._threshold = round(min(max(sample, 0.0), 1.0) * _ALL)
        self._capacity = capacity
        self._drain_every_s = drain_every_s
        self._background = background
        self._closing = self._closed = False
        self._told: set[str] = set()
        self._fresh()
        _recorders.add(self)
        if background:
            self._start()

    def _fresh(self) -> None:
        """Counters at zero and nothing waiting: at the start, and in a forked child, whose parent sends what it had."""
        self._attributes = self.resource.attributes()
        self._ring = Ring(self.clock, self._capacity)
        self._outbox = Outbox(self._exporter, self._tell)
        self._problems = Problems()
        self._drained = 0
        self._started_ns = self._reported_ns = time.time_ns()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

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
            at_ns: When it arrived, a stamp of the recorder's clock; None = now.

        Returns:
            A record; one that keeps nothing if the request is not recorded. Never raises.
        """
        if not self.enabled:
            return NO_RECORD
        ring = self._ring
        next(ring.begun)
        parent = trace_id = None
        if traceparent:
            parent = parse(traceparent)
            if parent is None:
                self._problems.add("bad_traceparent")
            elif not parent.sampled or int.from_bytes(parent.trace_id[8:], "big") >= self._threshold:
                next(ring.sampled_out)
                return Unrecorded(ring, render(parent.trace_id, parent.span_id, sampled=False))
        if parent is None and self._threshold < _ALL:
            draw = random_64_bits()  # the half of the trace id by which others with the same share decide
            trace_id = new_id(8) + draw.to_bytes(8, "big")
            if draw >= self._threshold:
                next(ring.sampled_out)
                return Unrecorded(ring, render(trace_id, new_id(8), sampled=False))
        record = Record(
            ring,
            self._now,
            None if self._system is None else self._system.offset_ns,
            request_id,
            parent,
            edge,
            attempt,
            self._now() if at_ns is None else at_ns,
        )
        if trace_id is not None:
            record.adopt(trace_id, new_id(8))
        return record

    # ------------------------------------------------------------------------------------------------ the other side

    def worker_state(self, state: str) -> None:
        """Say that this worker is starting, ready, draining or dead."""
        if self.enabled:
            self._outbox.put("logs", encode_state(state, self.clock.wall_ns(self._now()), self._attributes))
            self._wake.set()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Send what is finished, or wait until the drainer has.

        Returns:
            False if not all of it left in time; it stays waiting. Without a drainer the last send may exceed
            ``timeout_s`` by the exporter's own time limit.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            drainer = self._thread
            self._wake.set()
            if self._sending.acquire(timeout=max(0.0, until_s - time.monotonic())):
                try:
                    if drainer is None or not drainer.is_alive():
                        self.drain()
                        self._outbox.send(until_s)
                    if not self._ring and not self._outbox:
                        return True
                finally:
                    self._sending.release()
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, max(0.005, self._outbox.wait_s if drainer is None else 0.0)))

    def shutdown(self, timeout_s: float = 5.0) -> bool:
        """Stop recording, send what is left, close.

        Returns:
            Whether all was sent. Bounded in time as ``flush`` is.
        """
        self.enabled = False
        if self._closing:
            return not self._outbox
        self._closing = True
        until_s = time.monotonic() + timeout_s
        self._outbox.hurry()
        all_sent = self.flush(timeout_s)
        if self._background and all_sent:
            self._report()
            self.flush(until_s - time.monotonic())
        self._closed = True
        self._ring.close()
        self._wake.set()
        if self._sending.acquire(timeout=max(0.0, until_s - time.monotonic())):
            self._abandon()
            self._sending.release()
        return all_sent  # a drainer that hangs in a send abandons the rest itself, when it gets out

    def stats(self) -> Stats:
        """Counters since the start of this process."""
        ring, outbox = self._ring, self._outbox
        dropped, refused = value(ring.dropped), value(ring.refused)
        problems = dict(self._problems.counts)
        if value(ring.said_late):
            problems["said_after_finish"] = problems.get("said_after_finish", 0) + value(ring.said_late)
        return Stats(
            begun=value(ring.begun),
            sampled_out=value(ring.sampled_out),
            submitted=self._drained + len(ring) + dropped + refused,
            dropped_full=dropped,
            exported=outbox.exported,
            export_failed=outbox.failed + refused,
            rejected_spans=outbox.rejected,
            retries=outbox.retries,
            waiting=len(ring) + outbox.records,
            problems=problems,
        )

    def drain(self) -> int:
        """Encode what is finished, into requests that wait to be sent; how many records that were."""
        total = 0
        while records := self._ring.take(_RECORDS_A_BODY):
            total += len(records)
            self._drained += len(records)
            self._deliver(records)
        return total

    def _deliver(self, records: list[Record]) -> None:
        try:
            self._outbox.put("traces", encode(records, self._attributes, self._problems)[0], len(records))
        except Exception as problem:  # noqa: BLE001 - one record's values must not cost the others
            if len(records) > 1:
                for record in records:
                    self._deliver([record])
                return
            self._outbox.failed += 1
            self._problems.add("cannot_encode")
            self._tell("cannot_encode", f"a record cannot be encoded: {problem!r}")

    def _abandon(self) -> None:
        left = self._ring.take(1 << 62)
        self._drained += len(left)
        self._outbox.failed += len(left)
        self._outbox.give_all_up("the process ended before they were sent")
        self._outbox.close()

    def _tell(self, kind: str, text: str) -> None:
        """Once a kind: a log that fills up is one more thing that an engine should not have to bear."""
        if kind not in self._told:
            self._told.add(kind)
            log.warning("pdtrace: %s (said once; Recorder.stats() counts)", text)

    # ------------------------------------------------------------------------------------------------------ the thread

    def _start(self) -> None:
        thread = threading.Thread(target=_drain_forever, args=(weakref.ref(self),), name="pdtrace-drain", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # no more threads, or the interpreter is on its way out
            self._tell("no_thread", f"no drainer could be started, nothing is sent until a flush: {problem}")
        else:
            self._thread = thread

    def _turn(self) -> bool:
        """One look of the drainer; False if it was the last."""
        with self._sending:
            if self._closed:
                self._abandon()
                return False
            if self._system is not None:
                self._system.refresh()
            self.drain()
            self._tell_problems()
            self._outbox.send(time.monotonic() + _LONGEST_TURN_S)
            if time.time_ns() - self._reported_ns > _REPORT_EVERY_NS:
                self._report()
        return True

    def _tell_problems(self) -> None:
        for kind, count in self.stats().problems.items():
            self._tell(kind, f"{count} call(s) made no sense: {kind.replace('_', ' ')}")

    def _report(self) -> None:
        """Export the counters, if anything was counted: drops must be visible where the telemetry is."""
        self._reported_ns = time.time_ns()
        stats = self.stats()
        if not stats.begun or self._outbox.holds("metrics"):
            return
        fates = {
            "submitted": stats.submitted,
            "sampled_out": stats.sampled_out,
            "dropped_full": stats.dropped_full,
            "export_failed": stats.export_failed,
        }
        self._outbox.put("metrics", encode_counters(fates, self._started_ns, self._reported_ns, self._attributes))

    def _after_fork(self) -> None:
        self._ring.close()  # what the parent began is the parent's to export
        self._fresh()
        if self._background and not self._closing:
            self._start()


def _drain_forever(of: weakref.ref[Recorder]) -> None:
    recorder = of()
    while recorder is not None:
        wake, every_s = (
            recorder._wake,
            0.0 if recorder._outbox and not recorder._outbox.wait_s else recorder._drain_every_s,
        )
        del recorder  # a recorder that nobody holds any more must be free to go
        wake.wait(every_s)
        wake.clear()
        recorder = of()
        if recorder is None:
            return
        try:
            if not recorder._turn():
                return
        except Exception as problem:  # noqa: BLE001 - the host program must not hear of it, and the next turn may work
            recorder._tell("drainer", f"the drainer failed: {problem!r}")


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
    util = sys.modules.get("multiprocessing.util")
    if util is not None:  # its children leave by os._exit, without atexit; finalizers count once it has set itself up
        util.register_after_fork(_recorders, lambda _: util.Finalize(None, _at_exit, exitpriority=0))


@atexit.register
def _at_exit() -> None:
    for recorder in list(_recorders):
        if recorder._background:
            recorder.shutdown(_EXIT_TIMEOUT_S)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
