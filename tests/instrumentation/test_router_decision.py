"""What a router's decision becomes on its route span."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from pdtrace.instrumentation import NO_RECORD, router
from pdtrace.instrumentation.router import Decision, decided, deciding
from tests.instrumentation.reading import T0, Worker


@pytest.fixture
def worker() -> Worker:
    return Worker("router")


def test_a_decision_with_all_it_knows(worker: Worker) -> None:
    record = worker.recorder.begin("r1", edge=True, attempt=1)
    with deciding(record) as decision:
        decision.mode = "events"
        decision.candidates = ["p0", "p1"]
        decision.overlap_tokens = [512, 0]
        decision.cost = [1, 2.5]
        decision.predicted_queue_ms = [0.0, 1.0]
        decision.predicted_prefill_ms = [20.0, 40.0]
        decision.predicted_transfer_ms = [3.0, 3.0]
        decision.block_size = 16
        decision.chosen = "p0"
        decision.reason = "cheapest"
    record.finish("ok")
    (span,) = worker.spans("route")
    assert span.parent_id == worker.span("request").span_id
    assert span.attributes == {
        "pdtrace.request.id": "r1",
        "pdtrace.attempt": 1,
        "pdtrace.router.stage": "prefill",
        "pdtrace.router.mode": "events",
        "pdtrace.router.chosen": "p0",
        "pdtrace.router.candidates": ["p0", "p1"],
        "pdtrace.router.overlap_tokens": [512, 0],
        "pdtrace.router.cost": [1.0, 2.5],
        "pdtrace.router.predicted_queue_ms": [0.0, 1.0],
        "pdtrace.router.predicted_prefill_ms": [20.0, 40.0],
        "pdtrace.router.predicted_transfer_ms": [3.0, 3.0],
        "pdtrace.router.block_size": 16,
        "pdtrace.router.reason": "cheapest",
    }
    assert [type(value) for value in span.attributes["pdtrace.router.cost"]] == [float, float]


def test_two_decisions_at_once_keep_their_own_attributes(worker: Worker) -> None:
    """
    ```
    route prefill  0 - 3
    route decode   1 - 2
    ```
    """
    record = worker.recorder.begin("r1")
    with deciding(record, "prefill") as outer:
        outer.chosen = "p0"
        with deciding(record, "decode", attempt=2) as inner:
            inner.chosen = "d0"
    record.finish()
    spans = {span.attributes["pdtrace.router.stage"]: span for span in worker.spans("route")}
    assert {stage: span.attributes["pdtrace.router.chosen"] for stage, span in spans.items()} == {
        "prefill": "p0",
        "decode": "d0",
    }
    assert spans["prefill"].start_ns <= spans["decode"].start_ns <= spans["decode"].end_ns <= spans["prefill"].end_ns
    assert (spans["prefill"].attributes["pdtrace.attempt"], spans["decode"].attributes["pdtrace.attempt"]) == (0, 2)


def test_a_router_that_finds_nobody_says_so_and_its_exception_passes(worker: Worker) -> None:
    record = worker.recorder.begin("r1")

    def choose() -> None:
        with deciding(record) as decision:
            decision.candidates = []
            raise LookupError("no worker is up")

    with pytest.raises(LookupError, match="no worker"):
        choose()
    record.finish()
    (span,) = worker.spans("route")
    assert (span.status, span.status_message) == (2, "LookupError: no worker is up")
    assert "pdtrace.router.candidates" not in span.attributes


def test_numpy_and_iterators_and_lists_that_change_afterwards(worker: Worker) -> None:
    candidates = ["p0", "p1"]
    decision = Decision(
        candidates=candidates,
        overlap_tokens=np.array([16, 32]),
        cost=np.array([0.5, 0.25], dtype=np.float32),
        predicted_queue_ms=(ms for ms in (1, 2)),
    )
    record = worker.recorder.begin("r1", at_ns=T0 - 100)
    decided(record, decision, record.start_ns + 10, record.start_ns + 30)
    candidates.clear()
    record.finish()
    (span,) = worker.spans("route")
    assert span.end_ns - span.start_ns == 20
    assert span.attributes["pdtrace.router.candidates"] == ["p0", "p1"]
    assert span.attributes["pdtrace.router.overlap_tokens"] == [16, 32]
    assert span.attributes["pdtrace.router.cost"] == [0.5, 0.25]
    assert span.attributes["pdtrace.router.predicted_queue_ms"] == [1.0, 2.0]


class Broken:
    """A number of the router's own that is none."""

    def __int__(self) -> int:
        raise RuntimeError("no number")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"overlap_tokens": [1, 2, 3]}, "3 of overlap_tokens for 1"),
        ({"cost": ["cheap"]}, "cost: "),
        ({"cost": 7}, "cost: "),
        ({"cost": "7"}, "cost: one text"),
        ({"overlap_tokens": [float("inf")]}, "overlap_tokens: OverflowError"),
        ({"overlap_tokens": [Broken()]}, "overlap_tokens: RuntimeError: no number"),
    ],
)
def test_what_makes_no_sense_is_left_out_and_told_once(
    wrong: dict[str, Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    router._told.clear()
    for _ in range(2):
        found = Decision(candidates=["p0"], chosen="p0", **wrong).attributes()
        assert found == {
            "pdtrace.router.stage": "prefill",
            "pdtrace.router.chosen": "p0",
            "pdtrace.router.candidates": ["p0"],
        }
    (line,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert text in line.getMessage()


def test_nothing_is_done_for_a_request_that_is_not_recorded() -> None:
    read = []

    def watched() -> Any:
        read.append("p0")
        yield "p0"

    with deciding(NO_RECORD) as decision:
        decision.candidates = watched()
    decided(NO_RECORD, decision, 1, 2)
    assert read == []


def test_a_decision_that_cannot_be_read_costs_its_attributes_and_nothing_else(worker: Worker) -> None:
    record = worker.recorder.begin("r1")
    with deciding(record) as decision:
        decision.chosen = np.array(["p0", "p1"])  # type: ignore[assignment]  # neither equal to "" nor unequal
    record.finish()
    (span,) = worker.spans("route")
    assert span.attributes == {"pdtrace.request.id": "r1", "pdtrace.attempt": 0}
