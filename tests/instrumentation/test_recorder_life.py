"""Which requests are kept, what a full ring and a failing exporter cost, and how a recorder ends."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from pdtrace.instrumentation import NO_RECORD, ExportError, Recorder, Resource, outbox
from pdtrace.instrumentation import stages as s
from tests.instrumentation.reading import Memory, Worker

RESOURCE = Resource(service_name="engine", host_name="node-0")
CALLER = "00-{trace}-1112131415161718-{flags}"


class Flaky(Memory):
    """An exporter that raises what it is told, then takes everything."""

    def __init__(self, *failures: Exception) -> None:
        super().__init__()
        self.failures = list(failures)
        self.calls = 0

    def export(self, signal: str, body: bytes) -> None:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        super().export(signal, body)


class Stuck(Memory):
    """An exporter whose first send does not return until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = threading.Event()
        self.let_go = threading.Event()

    def export(self, signal: str, body: bytes) -> None:
        self.inside.set()
        self.let_go.wait(30)
        super().export(signal, body)


def wait_until(true: Callable[[], Any], limit_s: float = 10.0) -> None:
    until_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_FIRST_BACKOFF_S", 0.001)


# ------------------------------------------------------------------------------------------------------------ sampling


@given(st.integers(1, (1 << 128) - 1), st.floats(0, 1))
def test_a_callers_trace_is_kept_as_opentelemetry_would_keep_it(trace_id: int, share: float) -> None:
    recorder = Recorder(RESOURCE, Memory(), sample=share, background=False)
    record = recorder.begin("r", traceparent=CALLER.format(trace=f"{trace_id:032x}", flags="01"))
    wanted = TraceIdRatioBased(share).should_sample(None, trace_id, "").decision is Decision.RECORD_AND_SAMPLE
    assert record.recording is wanted
    assert record.traceparent[3:52] == (f"{trace_id:032x}-" + (record.span_id if wanted else "1112131415161718"))
    assert record.traceparent[-2:] == ("01" if wanted else "00")


@given(st.floats(0.01, 0.99))
def test_processes_with_one_share_keep_the_same_requests(share: float) -> None:
    router, engine = (Recorder(RESOURCE, Memory(), sample=share, background=False) for _ in range(2))
    for _ in range(20):
        edge = router.begin("r", edge=True)
        leg = engine.begin("r", traceparent=edge.traceparent)
        assert leg.recording is edge.recording
        assert leg.trace_id == edge.trace_id


def test_a_caller_that_does_not_record_is_followed_and_passed_on() -> None:
    worker = Worker()
    came_in = CALLER.format(trace="0102030405060708090a0b0c0d0e0f10", flags="00")
    record = worker.recorder.begin("r", traceparent=came_in)
    record.next(s.PREFILL)
    record.finish()
    assert (record.recording, record.traceparent) == (False, came_in)
    assert worker.spans() == []
    assert worker.recorder.stats().sampled_out == 1


@pytest.mark.parametrize(("share", "kept"), [(0.0, 0), (1.0, 2000), (-3.0, 0), (7.0, 2000)])
def test_all_or_nothing(share: float, kept: int) -> None:
    worker = Worker(sample=share, capacity=4000)
    for _ in range(2000):
        worker.recorder.begin("r", edge=True).finish("ok")
    assert len(worker.spans()) == kept
    stats = worker.recorder.stats()
    assert (stats.begun, stats.sampled_out, stats.submitted) == (2000, 2000 - kept, kept)


def test_a_share_is_about_that_share() -> None:
    worker = Worker(sample=0.25)
    kept = sum(worker.recorder.begin("r").recording for _ in range(4000))
    assert 850 < kept < 1150  # mean 1000, standard deviation 27


def test_off_means_no_record_and_nothing_counted() -> None:
    worker = Worker()
    worker.recorder.enabled = False
    assert worker.recorder.begin("r", edge=True) is NO_RECORD
    worker.recorder.worker_state("ready")
    assert worker.recorder.flush()
    assert worker.memory.bodies == []
    assert worker.recorder.stats().begun == 0


@pytest.mark.parametrize("bad", ["", None])
def test_no_header_is_no_mistake(bad: Any) -> None:
    worker = Worker()
    assert worker.recorder.begin("r", traceparent=bad).parent is None
    assert worker.recorder.stats().problems == {}


@pytest.mark.parametrize("bad", ["00-1-2-01", "nonsense", b"00-01", 7, "00-" + "0" * 32 + "-1112131415161718-01"])
def test_a_header_that_is_none_is_counted_and_told_once(bad: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(RESOURCE, Memory(), drain_every_s=0.001)
    for _ in range(3):
        record = recorder.begin("r", traceparent=bad, edge=True)
        record.finish("ok")
    assert record.recording
    assert recorder.flush()
    wait_until(lambda: caplog.records)
    assert recorder.shutdown()
    assert recorder.stats().problems == {"bad_traceparent": 3}
    (line,) = caplog.records
    assert "bad traceparent" in line.getMessage()


# ---------------------------------------------------------------------------------------------------------------- ring


def test_a_full_ring_drops_the_oldest_and_counts_it() -> None:
    worker = Worker(capacity=3)
    for number in range(10):
        worker.recorder.begin(str(number), edge=True).finish("ok")
    assert [span.attributes["pdtrace.request.id"] for span in worker.spans()] == ["7", "8", "9"]
    stats = worker.recorder.stats()
    assert (stats.submitted, stats.dropped_full, stats.exported, stats.waiting) == (10, 7, 3, 0)


def test_many_threads_lose_nothing() -> None:
    memory = Memory()
    recorder = Recorder(RESOURCE, memory, capacity=100_000, drain_every_s=0.001)

    def serve(thread: int) -> None:
        for number in range(300):
            record = recorder.begin(f"{thread}-{number}", edge=True)
            record.next(s.PREFILL)
            record.finish("ok")

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.shutdown(30)
    ids = [span.attributes["pdtrace.request.id"] for span in memory.spans() if span.name == "pdtrace.request"]
    assert sorted(ids) == sorted(f"{thread}-{number}" for thread in range(8) for number in range(300))
    assert len({(span.trace_id, span.span_id) for span in memory.spans()}) == 2 * 2400
    stats = recorder.stats()
    assert (stats.begun, stats.submitted, stats.exported, stats.dropped_full) == (2400, 2400, 2400, 0)


def test_one_record_stamped_from_many_threads() -> None:
    worker = Worker()
    record = worker.recorder.begin("r")

    def transfer(rank: int) -> None:
        for chunk in range(50):
            record.add(s.HANDOFF, worker.clock.at_ns, worker.clock.at_ns + 1, {"rank": rank, "chunk": chunk})

    threads = [threading.Thread(target=transfer, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.finish()
    told = {(span.attributes["rank"], span.attributes["chunk"]) for span in worker.spans("handoff")}
    assert told == {(rank, chunk) for rank in range(8) for chunk in range(50)}


def test_one_bad_record_does_not_cost_the_others() -> None:
    worker = Worker()
    for number in range(5):
        record = worker.recorder.begin(str(number), edge=True)
        if number == 2:
            record.next(s.PREFILL, "noon")  # type: ignore[arg-type]
        record.finish("ok")
    told = {span.attributes["pdtrace.request.id"] for span in worker.spans("request")}
    assert told >= {"0", "1", "3", "4"}
    stats = worker.recorder.stats()
    assert stats.exported + stats.export_failed == 5
    assert sum(stats.problems.values()) == 1


# ------------------------------------------------------------------------------------------------------------- sending


def finish_one(recorder: Recorder) -> None:
    recorder.begin("r", edge=True).finish("ok")


def test_what_may_be_taken_later_is_sent_again() -> None:
    memory = Flaky(ExportError("503", retry=True), ExportError("429", retry=True, retry_after_s=0.01))
    recorder = Recorder(RESOURCE, memory, background=False)
    finish_one(recorder)
    assert recorder.flush()
    assert len(memory.spans()) == 1
    stats = recorder.stats()
    assert (stats.exported, stats.retries, stats.export_failed) == (1, 2, 0)


@pytest.mark.parametrize("failure", [ExportError("400", retry=False), RuntimeError("an exporter of the host's own")])
def test_what_will_never_be_taken_is_dropped_counted_and_told_once(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    memory = Flaky(failure, failure)
    recorder = Recorder(RESOURCE, memory, background=False)
    for _ in range(3):
        finish_one(recorder)
        assert recorder.flush()
    stats = recorder.stats()
    assert (stats.exported, stats.retries, stats.export_failed) == (1, 0, 2)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_receivers_pause_is_kept_and_a_flush_does_not_wait_longer_than_it_may() -> None:
    memory = Flaky(ExportError("503", retry=True, retry_after_s=60.0))
    recorder = Recorder(RESOURCE, memory, background=False)
    finish_one(recorder)
    assert not recorder.flush(0.05)
    assert not recorder.flush(0.05)
    assert (memory.calls, recorder.stats().waiting) == (1, 1)


def test_a_receiver_that_stays_away_costs_the_oldest_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_GIVE_UP_AFTER_S", -1.0)
    memory = Flaky(*[ExportError("refused", retry=True)] * 2)
    recorder = Recorder(RESOURCE, memory, background=False)
    for _ in range(3):
        finish_one(recorder)
        assert recorder.flush()
    stats = recorder.stats()
    assert (stats.export_failed, stats.exported) == (2, 1)


def test_encoded_bytes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_MOST_WAITING_BYTES", 1000)
    memory = Flaky(ExportError("refused", retry=True, retry_after_s=60.0))
    recorder = Recorder(RESOURCE, memory, background=False)
    for _ in range(100):
        finish_one(recorder)
        recorder.drain()
        recorder.flush(0)
    stats = recorder.stats()
    assert stats.waiting + stats.export_failed == 100
    assert 0 < stats.waiting < 10


def test_spans_that_the_receiver_rejects_are_counted() -> None:
    class Picky(Memory):
        def export(self, signal: str, body: bytes) -> Any:
            super().export(signal, body)
            return 2

    recorder = Recorder(RESOURCE, Picky(), background=False)
    finish_one(recorder)
    assert recorder.flush()
    assert (recorder.stats().exported, recorder.stats().rejected_spans) == (1, 2)


def test_counters_are_exported_the_last_time_at_the_end() -> None:
    memory = Memory()
    recorder = Recorder(RESOURCE, memory, sample=0.5, capacity=1, drain_every_s=30)
    while recorder.stats().dropped_full < 2:
        finish_one(recorder)
    stats = recorder.stats()
    assert recorder.shutdown()
    assert memory.metrics() == [
        {
            "submitted": stats.submitted,
            "sampled_out": stats.sampled_out,
            "dropped_full": stats.dropped_full,
            "export_failed": 0,
        }
    ]


def test_a_process_without_requests_reports_nothing() -> None:
    memory = Memory()
    assert Recorder(RESOURCE, memory).shutdown()
    assert (memory.bodies, memory.closed) == ([], 1)


def test_worker_states_are_log_records_with_an_event_name() -> None:
    worker = Worker("prefill")
    worker.recorder.worker_state("ready")
    assert worker.recorder.flush()
    (record,) = worker.memory.logs()
    assert (record.event_name, record.time_unix_nano) == ("pdtrace.worker.state", worker.clock.at_ns)
    (pair,) = record.attributes
    assert (pair.key, pair.value.string_value) == ("pdtrace.worker.state", "ready")


# ------------------------------------------------------------------------------------------------------------ the life


def test_the_drainer_sends_without_being_asked() -> None:
    memory = Memory()
    recorder = Recorder(RESOURCE, memory, drain_every_s=0.01)
    finish_one(recorder)
    wait_until(memory.spans)
    assert recorder.shutdown()


def test_a_drainer_that_fails_once_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    recorder = Recorder(RESOURCE, memory, drain_every_s=0.005)
    real, failed = recorder.drain, threading.Event()

    def drain() -> int:
        if not failed.is_set():
            failed.set()
            raise MemoryError("for once")
        return real()

    monkeypatch.setattr(recorder, "drain", drain)
    finish_one(recorder)
    wait_until(memory.spans)
    assert failed.is_set()
    assert recorder.shutdown()


def test_a_shutdown_does_not_wait_for_an_exporter_that_hangs_and_nothing_is_unaccounted_for() -> None:
    memory = Stuck()
    recorder = Recorder(RESOURCE, memory, drain_every_s=0.001)
    finish_one(recorder)
    assert memory.inside.wait(10)
    finish_one(recorder)
    before_s = time.monotonic()
    assert not recorder.shutdown(0.2)
    assert time.monotonic() - before_s < 5  # not a measurement: the exporter would hold it for 30 s
    memory.let_go.set()
    wait_until(lambda: memory.closed)
    stats = recorder.stats()
    assert (stats.submitted, stats.exported, stats.export_failed, stats.waiting) == (2, 1, 1, 0)


def test_hosts_calls_return_while_the_exporter_hangs() -> None:
    memory = Stuck()
    recorder = Recorder(RESOURCE, memory, capacity=10, drain_every_s=0.001)
    finish_one(recorder)
    assert memory.inside.wait(10)
    for _ in range(100):
        finish_one(recorder)
    recorder.worker_state("draining")
    assert not recorder.flush(0.05)
    assert recorder.stats().dropped_full == 90
    memory.let_go.set()
    assert recorder.shutdown()
    stats = recorder.stats()
    assert (stats.submitted, stats.exported) == (101, 11)


def test_after_a_shutdown_records_are_refused_and_counted() -> None:
    memory = Memory()
    recorder = Recorder(RESOURCE, memory)
    running = recorder.begin("late", edge=True)
    assert recorder.shutdown()
    assert recorder.shutdown()
    running.finish("ok")
    assert recorder.begin("later") is NO_RECORD
    assert recorder.flush()
    assert memory.spans() == []
    stats = recorder.stats()
    assert (stats.submitted, stats.export_failed, stats.waiting, memory.closed) == (1, 1, 0, 1)


def test_a_recorder_that_nobody_holds_goes_and_its_thread_too() -> None:
    recorder = Recorder(RESOURCE, Memory(), drain_every_s=0.005)
    thread, gone = recorder._thread, weakref.ref(recorder)
    assert thread is not None
    del recorder
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    thread.join(10)
    assert not thread.is_alive()


def test_no_more_threads_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    memory = Memory()
    recorder = Recorder(RESOURCE, memory)
    finish_one(recorder)
    assert recorder.shutdown()
    assert len(memory.spans()) == 1
