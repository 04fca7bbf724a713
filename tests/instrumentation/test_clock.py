"""The wall clock behind the stamps: one anchor a record, so that no step of it changes a duration."""

from __future__ import annotations

import time

import pytest

from pdtrace.instrumentation import Recorder, Resource, SystemClock
from pdtrace.instrumentation import stages as s
from tests.instrumentation.reading import Hand, Memory


def test_a_wall_clock_that_jumps_changes_no_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    wall   1000 s ahead from here on |
    record a  ---------------------- | ------   all of it by the old anchor
    record b                         |  ------  by the new one
    """
    clock, memory = SystemClock(), Memory()
    recorder = Recorder(Resource(), memory, clock=clock, background=False)
    start_ns = clock.now_ns()
    old_ns = clock.offset_ns
    before = recorder.begin("a", edge=True, at_ns=start_ns)
    before.next(s.PREFILL, start_ns + 10)
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 1_000_000_000_000)
    clock.anchor()
    assert clock.offset_ns - old_ns == pytest.approx(1_000_000_000_000, abs=1_000_000_000)
    before.next(s.DECODE, start_ns + 30)
    before.tokens(at_ns=start_ns + 31)
    before.finish(at_ns=start_ns + 60)
    after = recorder.begin("b", edge=True, at_ns=start_ns)
    after.finish(at_ns=start_ns + 60)
    assert recorder.flush()
    root, prefill, decode, other = memory.spans()
    assert (root.start_ns, root.end_ns) == (old_ns + start_ns, old_ns + start_ns + 60)
    assert (prefill.start_ns, prefill.end_ns) == (old_ns + start_ns + 10, old_ns + start_ns + 30)
    assert (decode.start_ns, decode.end_ns) == (old_ns + start_ns + 30, old_ns + start_ns + 60)
    assert root.attributes["pdtrace.first_token_ns"] == old_ns + start_ns + 31
    assert root.attributes["pdtrace.token_times_ns"] == [31]
    assert (other.start_ns, other.end_ns) == (clock.offset_ns + start_ns, clock.offset_ns + start_ns + 60)


def test_the_anchor_is_taken_anew_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SystemClock()
    old_ns = clock.offset_ns
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 5_000_000_000)
    clock.refresh()
    assert clock.offset_ns == old_ns
    clock._anchored_ns -= 61_000_000_000
    clock.refresh()
    assert clock.offset_ns - old_ns == pytest.approx(5_000_000_000, abs=1_000_000_000)


def test_stamps_are_unix_time() -> None:
    clock = SystemClock()
    before_ns = time.time_ns()
    at_ns = clock.wall_ns(clock.now_ns())
    after_ns = time.time_ns()
    assert before_ns - 1_000_000 <= at_ns <= after_ns + 1_000_000


def test_a_clock_of_the_hosts_own() -> None:
    """A simulated host's clock: Unix time is asked for each stamp."""

    class Drifting(Hand):
        def wall_ns(self, now_ns: int) -> int:
            return now_ns + 100 + now_ns // 10

    memory, clock = Memory(), Drifting()
    recorder = Recorder(Resource(), memory, clock=clock, background=False)
    clock.at_ns = 1000
    record = recorder.begin("r", edge=True)
    record.next(s.PREFILL)
    clock.at_ns = 2000
    record.finish()
    assert recorder.flush()
    assert [(span.start_ns, span.end_ns) for span in memory.spans()] == [(1200, 2300)] * 2
