"""Every request is counted, once: over drawn sequences, over threads, and in the metric that says what was dropped."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.instrumentation import ExportError, Recorder, Resource, Stats
from pdtrace.instrumentation import stages as s
from tests.instrumentation.reading import Memory, Worker, metric_points
from tests.instrumentation.receivers import wait_for

FLAGGED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNFLAGGED = FLAGGED[:-1] + "0"


def adds_up(stats: Stats, running: int = 0) -> bool:
    """Whether every request is somewhere, and only once."""
    return (
        stats.begun == stats.sampled_out + stats.submitted + running
        and stats.submitted == stats.dropped_full + stats.exported + stats.export_failed + stats.waiting
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.lists(st.sampled_from(["begin", "finish", "flush", "lose"]), max_size=120))
def test_every_request_is_counted_once(capacity: int, steps: list[str]) -> None:
    worker = Worker(capacity=capacity)
    running = []
    for step in steps:
        if step == "begin":
            running.append(worker.recorder.begin("r", edge=True))
        elif step == "finish" and running:
            running.pop().finish()
        elif step == "flush":
            assert worker.recorder.flush()
        elif step == "lose" and running:
            running[-1].add("prefill", "never", 0)  # type: ignore[arg-type]
        assert adds_up(worker.recorder.stats(), len(running))
        assert worker.recorder.stats().waiting <= capacity
    assert worker.recorder.shutdown()
    stats = worker.recorder.stats()
    assert adds_up(stats, len(running))
    assert stats.waiting == 0
    assert len(worker.memory.spans()) == stats.exported


class Moody(Memory):
    """Takes everything but now and then."""

    def export(self, signal: str, body: bytes) -> None:
        """Refuse every third body for good."""
        super().export(signal, body)
        if len(self.bodies) % 3 == 0:
            self.bodies.pop()
            self.bodies.append(("refused", body))
            raise ExportError("no", retry=False)


@pytest.mark.parametrize("capacity", [50, 100_000])
def test_threads_that_finish_at_once_are_all_counted(capacity: int) -> None:
    memory = Moody()
    recorder = Recorder(Resource(), memory, capacity=capacity, drain_every_s=0.001)
    together = threading.Barrier(6)

    def requests(thread: int) -> None:
        together.wait()
        for number in range(400):
            record = recorder.begin(f"{thread}-{number}", edge=True)
            record.next(s.PREFILL)
            record.finish("ok")
            if number % 50 == 0:
                recorder.stats()
                recorder.worker_state("ready")

    threads = [threading.Thread(target=requests, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.flush(20)
    stats = recorder.stats()
    assert recorder.shutdown()
    assert (stats.begun, stats.submitted, stats.waiting) == (2400, 2400, 0)
    assert adds_up(stats)
    assert stats.problems == {}
    found = [span.attributes["pdtrace.request.id"] for span in memory.spans() if span.name == "pdtrace.request"]
    assert len(found) == len(set(found)) == stats.exported
    assert capacity < 2400 or stats.dropped_full == 0


def test_a_request_left_out_tells_the_next_so() -> None:
    front, back = Worker(sample=0.0).recorder, Worker().recorder
    for caller in (None, FLAGGED):
        record = front.begin("r", traceparent=caller, edge=True)
        assert not record.recording
        assert record.traceparent.endswith("-00")
        assert caller is None or record.traceparent == UNFLAGGED
        further = back.begin("r", traceparent=record.traceparent)
        assert not further.recording
        assert further.traceparent == record.traceparent


def test_drops_are_exported_as_a_metric() -> None:
    """Where the telemetry is, it must be visible that some is missing."""
    memory = Memory()
    recorder = Recorder(Resource(), memory, capacity=4, sample=1.0, drain_every_s=60)
    for number in range(10):
        recorder.begin(str(number), edge=True).finish()
    recorder.begin("r", traceparent=UNFLAGGED)
    assert recorder.shutdown()
    (points,) = memory.metrics()
    assert points == {"submitted": 10, "sampled_out": 1, "dropped_full": 6, "export_failed": 0}


def test_counters_are_sent_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from pdtrace.instrumentation import recorder as module

    monkeypatch.setattr(module, "_REPORT_EVERY_NS", 0)
    memory = Memory()
    recorder = Recorder(Resource(), memory, drain_every_s=0.005)
    time.sleep(0.03)
    assert memory.bodies == []  # a process without requests says nothing
    recorder.begin("a", edge=True).finish()
    wait_for(lambda: any(points["submitted"] == 1 for points in memory.metrics()))
    recorder.begin("b", edge=True).finish()
    wait_for(lambda: any(points["submitted"] == 2 for points in memory.metrics()))
    monkeypatch.undo()  # with a report at every look there is always one that waits
    assert recorder.shutdown()
    counts = [metric_points(body)["submitted"] for signal, body in memory.bodies if signal == "metrics"]
    assert counts == sorted(counts)
