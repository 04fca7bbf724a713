"""Legs, attempts, envelopes, queue and mode, on hand-made spans."""

from __future__ import annotations

import random

import pytest

from pdtrace.model import Reading, Span
from tests.dialects.dynamo.conftest import MS, T0, make_http, make_payload, make_route, make_span, readings


def read(*spans: Span) -> Reading:
    return next(iter(readings(spans).values()))


def test_a_migration_runs_the_prefill_again() -> None:
    """The retried prefill has request.attempt 0 again, and http-request keeps the dead decode worker.

    route P 1 - 10   @p0       route D 11 - 50  @d_dead, worker_disconnected
    route P 51 - 60  @p1       route D 61 - 99  @d1, request.attempt 1
    """
    gone = {"request__outcome": "worker_disconnected", "error__type": "disconnected"}
    reading = read(
        make_http((0, 100), status=2, request__outcome="success", decode_worker_id="d_dead", prefill_worker_id="p1"),
        make_route((1, 10), "Prefill", "p0", request__outcome="success"),
        make_route((11, 50), "Decode", "d_dead", **gone),
        make_route((51, 60), "Prefill", "p1", request__outcome="success"),
        make_route((61, 99), "Decode", "d1", request__attempt="1", request__outcome="success"),
    )
    assert [(leg.role, leg.worker, leg.attempt, leg.failed) for leg in reading.legs] == [
        ("prefill", "p0", 0, False),
        ("decode", "d_dead", 0, True),
        ("prefill", "p1", 1, False),
        ("decode", "d1", 1, False),
    ]
    assert reading.facts["attempts"] == 2
    assert reading.facts["decode_worker"] == "d1"
    assert reading.facts["prefill_worker"] == "p1"
    assert reading.facts["answered"] is True
    assert [(f.stage, f.worker, f.time_ns) for f in reading.failures] == [("decode", "d_dead", T0 + 50 * MS)]
    assert "worker_disconnected disconnected" in reading.failures[0].text


def test_prompts_of_one_completions_list_are_no_retries() -> None:
    wrap = make_span("completions_batch", (0.5, 99), span_id="ba7c000000000000")
    reading = read(
        make_http((0, 100), uri="/v1/completions"),
        wrap,
        *(
            make_span(
                "kv_router.route_request",
                (1, 90),
                parent=wrap.span_id,
                phase="Aggregated",
                worker_id="1",
                request_id=rid,
            )
            for rid in ("u-0", "u-1")
        ),
    )
    assert [leg.attempt for leg in reading.legs] == [0, 0]
    assert reading.facts["attempts"] == 1


@pytest.mark.parametrize(
    ("decode_at_ms", "mode"),
    [((40, 90), "sequential"), ((42, 90), "sequential"), ((39.9, 90), "overlapped"), ((2, 90), "overlapped")],
)
def test_mode_is_whether_p_had_answered(decode_at_ms: tuple[float, float], mode: str) -> None:
    reading = read(make_http((0, 100)), make_route((1, 40), "Prefill", "p"), make_route(decode_at_ms, "Decode", "d"))
    assert reading.facts["mode"] == mode


def test_mode_with_an_open_prefill_is_overlapped_and_without_decode_unknown() -> None:
    open_prefill = make_route((1, 0), "Prefill", "p")
    assert read(make_http((0, 0)), open_prefill, make_route((2, 0), "Decode", "d")).facts["mode"] == "overlapped"
    assert "mode" not in read(make_http((0, 0)), open_prefill).facts


def test_aggregated_worker_is_both_and_backend_takes_the_role_of_its_leg() -> None:
    route = make_route((1, 90), "Aggregated", "17105925267334643130", overlap_blocks="8")
    reading = read(make_http((0, 100)), route, make_payload((2, 89), route, "backend", "17105925267334643130"))
    assert reading.facts["mode"] == "aggregated"
    assert reading.facts["prefill_worker"] == reading.facts["decode_worker"] == "17105925267334643130"
    (envelope,) = reading.envelopes
    assert (envelope.role, envelope.clock) == ("aggregated", "process:17105925267334643130")
    assert (envelope.prefill_ns, envelope.queue_ns, envelope.first_token_ns) == (None, None, None)
    assert [e.value for e in reading.evidence if e.name == "predicted_overlap_blocks"] == [8]


def test_a_worker_span_without_its_leg_keeps_what_it_says_itself() -> None:
    lost = make_route((1, 10), "Prefill", "p")
    (prefill,) = read(make_payload((1, 9), lost, "prefill", "p")).envelopes
    (backend,) = read(make_payload((1, 9), lost, "backend", "d")).envelopes
    assert (prefill.role, backend.role) == ("prefill", "")


def test_the_idle_part_of_schedule_is_the_router_queue() -> None:
    """select_worker 1 - 6; .schedule 2 - 5.5, of which 0.5 ms busy and 3 ms idle."""
    choice = make_span("kv_router.select_worker", (1, 6), span_id="c000000000000000")
    reading = read(
        make_http((0, 100)),
        choice,
        make_span("kv_router.schedule", (2, 5.5), parent=choice.span_id, busy_ns=500_000, idle_ns=3_000_000),
        make_span("kv_router.find_matches", (1.2, 1.9), parent=choice.span_id, busy_ns=1, idle_ns=600_000),
        make_route((6, 40), "Prefill", "p"),
    )
    placed = [(a.stage, a.start_ns - T0, a.end_ns - T0, a.detail["phase"]) for a in reading.activities]
    assert placed == [
        ("route", 1 * MS, 6 * MS, "prefill"),
        ("router_queue", round(2.5 * MS), round(5.5 * MS), "prefill"),
    ]


@pytest.mark.parametrize("numbers", [{}, {"idle_ns": "much"}, {"idle_ns": 0}, {"idle_ns": -5}])
def test_no_queue_is_told_where_schedule_does_not_say(numbers: dict[str, object]) -> None:
    choice = make_span("kv_router.select_worker", (1, 6), span_id="c000000000000000")
    schedule = make_span("kv_router.schedule", (2, 5.5), parent=choice.span_id, **numbers)
    assert [a.stage for a in read(make_http((0, 100)), choice, schedule).activities] == ["route"]


def test_the_reading_does_not_depend_on_arrival_order() -> None:
    route = make_route((1, 10), "Prefill", "p", request__outcome="success")
    decode = make_route((11, 90), "Decode", "d", request__outcome="success")
    spans = [
        make_http((0, 100), ttft_ms="50"),
        make_span("kv_router.select_worker", (0.5, 0.9)),
        route,
        make_payload((2, 9), route, "prefill", "p"),
        make_span("kv_router.select_worker", (10.1, 10.9)),
        decode,
        make_payload((12, 95), decode, "backend", "d"),  # outlives its parent and the edge's first token
    ]
    expected = read(*spans)
    for seed in range(5):
        shuffled = random.Random(seed).sample(spans, len(spans))
        assert repr(read(*shuffled)) == repr(expected)
