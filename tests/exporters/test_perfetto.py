"""Perfetto export: lanes, order and exact stamps.

req          0 - 120
  container  0 - 120   front end
  prefill    5 - 100   @P0
  handoff   60 - 110   @P0>D0
  first    110 - 120   @D0
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pdtrace.exporters import perfetto

MS = 1_000_000
T0 = 1_780_000_000_000_000_001


def activity(stage: str, start_ms: int, end_ms: int | None, worker: str, role: str = "") -> dict[str, Any]:
    return {
        "stage": stage,
        "start_ns": T0 + start_ms * MS,
        "end_ns": 0 if end_ms is None else T0 + end_ms * MS,
        "worker": worker,
        "role": role,
        "attempt": 0,
        "rank": "",
        "span_id": "aa" * 8,
        "dialect": "test",
        "failed": False,
        "open": end_ms is None,
        "detail": {},
    }


def request() -> dict[str, Any]:
    return {
        "uid": "u1",
        "request_id": "r1",
        "window": [T0, T0 + 120 * MS],
        "end_ns": T0 + 900 * MS,
        "last_ns": T0 + 900 * MS,
        "section_list": [
            ["ingress", T0, T0 + 5 * MS],
            ["prefill", T0 + 5 * MS, T0 + 100 * MS],
            ["handoff", T0 + 100 * MS, T0 + 110 * MS],
            ["first_token", T0 + 110 * MS, T0 + 120 * MS],
        ],
        "activities": [
            activity("container", 0, 120, "fe"),
            activity("prefill", 5, 100, "P0", "prefill"),
            activity("handoff", 60, 110, "P0>D0"),
            activity("first_token", 110, 120, "D0", "decode"),
        ],
    }


def lanes(trace: dict[str, Any]) -> dict[int, str]:
    return {
        event["pid"]: event["args"]["name"].partition(" (")[0]
        for event in trace["traceEvents"]
        if event["name"] == "process_name"
    }


def intervals(trace: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    lane = lanes(trace)
    return [(lane[e["pid"]], e["name"], e["ts"], e["ts"] + e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]


def test_lanes_and_strip_of_one_request() -> None:
    trace = perfetto.trace([request()])
    assert list(lanes(trace).values()) == ["TTFT sections", "front end", "router", "P", "link", "D"]
    assert intervals(trace) == [
        ("TTFT sections", "ingress", 0.0, 5_000.0),
        ("TTFT sections", "prefill", 5_000.0, 100_000.0),
        ("TTFT sections", "handoff", 100_000.0, 110_000.0),
        ("TTFT sections", "first_token", 110_000.0, 120_000.0),
        ("front end", "container", 0.0, 120_000.0),
        ("P", "prefill", 5_000.0, 100_000.0),
        ("link", "handoff", 60_000.0, 110_000.0),
        ("D", "first_token", 110_000.0, 120_000.0),
    ]
    assert trace["otherData"]["origin_ns"] == str(T0)


def test_overlapping_activities_of_a_worker_get_rows_of_their_own_and_touching_ones_share() -> None:
    row = request()
    row["activities"] = [
        activity("prefill", 0, 50, "P0", "prefill"),
        activity("bootstrap", 20, 60, "P0", "prefill"),
        activity("prefill", 50, 70, "P0", "prefill"),
    ]
    events = [e for e in perfetto.trace([row])["traceEvents"] if e["ph"] == "X" and e["cat"] == "P"]
    assert [(e["name"], e["ts"], e["tid"]) for e in events] == [
        ("prefill", 0.0, 1),
        ("prefill", 50_000.0, 1),
        ("bootstrap", 20_000.0, 2),
    ]


def test_an_open_activity_is_drawn_as_far_as_anything_is_known() -> None:
    row = request() | {"activities": [activity("decode_queue", 110, None, "D0", "decode")]}
    assert ("D", "decode_queue", 110_000.0, 900_000.0) in intervals(perfetto.trace([row]))


def test_work_is_drawn_where_it_was_done() -> None:
    assert perfetto.lane_of(activity("prefill", 0, 1, "D0", "decode")) == "D"
    assert perfetto.lane_of(activity("recompute", 0, 1, "D0", "decode")) == "D"
    assert perfetto.lane_of(activity("recompute", 0, 1, "P1", "prefill")) == "P"
    assert perfetto.lane_of(activity("bootstrap", 0, 1, "P0", "prefill")) == "P"
    assert perfetto.lane_of(activity("route", 0, 1, "r")) == "router"


def test_several_requests_share_one_time_axis() -> None:
    late = request() | {"uid": "u2", "request_id": "r2"}
    late["activities"] = [activity("route", 500, 501, "router")]
    late["section_list"] = []
    trace = perfetto.trace([request(), late])
    assert ("router", "route", 500_000.0, 501_000.0) in intervals(trace)
    assert len(lanes(trace)) == 12


def test_nothing_to_draw_is_an_empty_trace() -> None:
    assert perfetto.trace([])["traceEvents"] == []


@given(st.integers(min_value=0, max_value=2**50))
def test_perfetto_reads_the_nanosecond_that_was_written(ns: int) -> None:
    assert int(perfetto.microseconds(ns) * 1000) == ns


@given(st.integers(min_value=0, max_value=2**50))
def test_microseconds_keep_the_order(ns: int) -> None:
    assert perfetto.microseconds(ns) < perfetto.microseconds(ns + 1)
