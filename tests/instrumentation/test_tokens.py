"""The compact token timeline against a plain list, and on the wire."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtrace.instrumentation import NO_RECORD
from pdtrace.instrumentation.tokens import TokenTimeline
from tests.instrumentation.reading import Worker

STAMPS = st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 50)), max_size=40)


@given(STAMPS)
def test_it_gives_back_what_it_was_given(stamps: list[tuple[int, int]]) -> None:
    timeline = TokenTimeline()
    for at_ns, count in stamps:
        timeline.step(at_ns, count)
    assert list(timeline) == stamps
    assert len(timeline) == len(stamps)


@given(STAMPS.filter(bool))
def test_the_wire_is_the_same_as_with_plain_stamps(stamps: list[tuple[int, int]]) -> None:
    worker = Worker()
    worker.clock.at_ns = 1
    plain, compact = worker.recorder.begin("r1", edge=True), worker.recorder.begin("r1", edge=True)
    timeline = TokenTimeline(compact)
    for number, (at_ns, count) in enumerate(stamps):
        plain.tokens(count, at_ns)
        if number % 2:
            compact.tokens(count, at_ns)
        else:
            timeline.step(at_ns, count)
    for record in (plain, compact):
        record.finish("ok", at_ns=2**62)
    told_plainly, told_compactly = [span.attributes for span in worker.spans()]
    assert told_plainly == told_compactly
    assert told_plainly["pdtrace.first_token_ns"] == min(at_ns for at_ns, _ in stamps)


def test_stamps_from_before_are_kept() -> None:
    worker = Worker()
    record = worker.recorder.begin(edge=True)
    record.tokens(2, record.start_ns + 5)
    timeline = TokenTimeline()
    timeline.attach(record)
    timeline.attach(record)
    timeline.step(record.start_ns + 9)
    record.finish()
    attributes = worker.span("request").attributes
    assert attributes["pdtrace.token_times_ns"] == [5, 9]
    assert attributes["pdtrace.token_counts"] == [2, 1]


def test_counts_cost_nothing_until_a_chunk_is_not_one_token() -> None:
    timeline = TokenTimeline()
    for at_ns in range(1000):
        timeline.step(at_ns)
    assert sys.getsizeof(timeline._deltas_ns) < 10_000
    assert timeline._counts is None


@pytest.mark.parametrize(("at_ns", "count"), [("now", 1), (1 << 70, 1), (5, "two"), (None, 3)])
def test_a_stamp_that_is_none_is_left_out(at_ns: object, count: object) -> None:
    timeline = TokenTimeline()
    timeline.step(1, 2)
    timeline.step(at_ns, count)  # type: ignore[arg-type]
    timeline.step(3)
    assert list(timeline) == [(1, 2), (3, 1)]


def test_nothing_is_kept_of_a_request_that_is_not_recorded() -> None:
    TokenTimeline(NO_RECORD).step(1)
    assert NO_RECORD.token_stamps is None


def test_beyond_its_limit_an_answer_has_a_first_token_and_no_times() -> None:
    worker = Worker()
    record = worker.recorder.begin("r1", edge=True)
    timeline = TokenTimeline(record, limit=3)
    for after_ns in (7, 5, 11):  # 5 is the first, though said second
        timeline.step(record.start_ns + after_ns, 2)
    assert (len(timeline), timeline.left_out) == (3, 0)
    for after_ns in range(20, 30):
        timeline.step(record.start_ns + after_ns)
    assert list(timeline) == [(record.start_ns + 5, 2)]
    assert len(timeline) + timeline.left_out == 13
    record.finish("ok", at_ns=record.start_ns + 40)
    assert worker.span("request").attributes == {
        "pdtrace.request.id": "r1",
        "pdtrace.outcome": "ok",
        "pdtrace.first_token_ns": record.start_ns + 5,
        "pdtrace.token_times_left_out": 12,
    }


@given(STAMPS.filter(bool), st.integers(1, 20))
def test_kept_or_left_out_every_chunk_is_counted(stamps: list[tuple[int, int]], limit: int) -> None:
    timeline = TokenTimeline(limit=limit)
    for stamp in stamps:
        timeline.append(stamp)
    assert len(timeline) + timeline.left_out == len(stamps)
    kept = stamps if len(stamps) <= limit else [min(stamps[: limit + 1])]
    assert list(timeline) == kept
