"""The request trace: one record whatever form it came in, and what is known of a request that sent no spans."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from pdtrace.dialects.dynamo import DynamoDialect
from pdtrace.dialects.dynamo_request_trace import from_event
from pdtrace.model import Log, Reading
from tests.dialects.dynamo.conftest import MS, readings

if TYPE_CHECKING:
    from tests.dialects.dynamo.conftest import Capture

DIALECT = DynamoDialect()

#: base-2-0001 of capture b, without its block hashes.
EVENT: dict[str, Any] = {
    "schema": "dynamo.request.trace.v1",
    "event_type": "request_end",
    "event_time_unix_ms": 1796074641662,
    "request": {
        "request_id": "9e14d2ea-5b03-4572-b469-7ac2312c9e6b",
        "input_tokens": 1097,
        "output_tokens": 32,
        "cached_tokens": 0,
        "request_received_ms": 1796074641363,
        "prefill_wait_time_ms": 3.473722,
        "prefill_time_ms": 35.883531000000005,
        "ttft_ms": 39.357253,
        "total_time_ms": 298.61101299999996,
        "avg_itl_ms": 8.363024516129032,
        "kv_hit_rate": 0.0,
        "kv_transfer_estimated_latency_ms": 26.843829,
        "queue_depth": 0,
        "worker": {"prefill_worker_id": 9645624555708141156, "decode_worker_id": 4927420074008608435},
        "replay": {"trace_block_size": 64, "input_length": 1097},
    },
}


def event(**request: Any) -> dict[str, Any]:
    return {**EVENT, "request": {**EVENT["request"], **request}}


def alone(body: dict[str, Any]) -> Reading:
    record = from_event(body)
    assert record is not None
    return next(iter(readings([], [record]).values()))


def log_of(payload: object, scope: str = "dynamo.request_trace") -> Log:
    return Log(1, "INFO", "", "request_end", scope, {}, {"rid": "r", "payload": payload})


@pytest.mark.parametrize("name", ["a-agg-kv-events", "b-pd-kv-events", "b2-pd-kv-events-bootstrap", "d-pd-overload"])
def test_file_and_log_form_are_one_record(capture: Callable[[str], Capture], name: str) -> None:
    seen = capture(name)
    from_logs = {r.key: r for log in seen.logs if (r := DIALECT.record_from_log(log)) is not None}
    assert len(from_logs) == len(seen.events) == len(seen.records)
    for record in seen.records:
        twin = from_logs[record.key]
        assert (twin.kind, twin.key, twin.time_ns, twin.body) == (record.kind, record.key, record.time_ns, record.body)
        assert twin.source == record.source


def test_a_record_joins_on_the_request_id() -> None:
    record = from_event(EVENT)
    assert record is not None
    keys = DIALECT.record_keys(record)
    assert keys is not None
    assert [(key.kind, key.value) for key in keys] == [("request_id", "9e14d2ea-5b03-4572-b469-7ac2312c9e6b")]
    record.kind = "trtllm.perf_metrics"
    assert DIALECT.record_keys(record) is None


@pytest.mark.parametrize(
    "payload",
    [None, 7, "", '{"schema":"dynamo.request.trace.v1","request":{"requ', "[]", '{"schema":"other"}', "\ud800"],
)
def test_a_log_that_holds_no_whole_record_is_no_record(payload: object) -> None:
    assert DIALECT.record_from_log(log_of(payload)) is None


def test_only_the_request_trace_scope_holds_records() -> None:
    text = orjson.dumps(EVENT).decode()
    assert DIALECT.record_from_log(log_of(text)) is not None
    assert DIALECT.record_from_log(log_of(text, scope="request_span")) is None


@pytest.mark.parametrize("body", [None, [], {}, {"schema": "x"}, {**EVENT, "request": None}, event(request_id="")])
def test_what_is_no_event_makes_no_record(body: object) -> None:
    assert from_event(body) is None


def test_a_request_without_spans_keeps_its_claims_and_has_no_first_token() -> None:
    reading = alone(EVENT)
    (edge,) = reading.edges
    assert edge.first_token_ns is None
    assert edge.start_ns == 1796074641363 * MS
    assert edge.end_ns == edge.start_ns + 298_611_013
    assert {c.name: c.ttft_ns for c in reading.ttft_claims} == {"dynamo_nvext": 39_357_253, "estimate": 66_201_082}
    assert reading.facts["answered"] is True
    assert {w.code for w in reading.warnings} == {"no_spans", "outcome_from_tokens"}
    assert reading.facts["prefill_worker"] == "9645624555708141156"  # a u64 above 2**63 stays exact
    assert reading.activities == []


def test_a_finish_reason_is_the_better_sign_of_an_answer() -> None:
    finish = {"finish_reason": "length", "backend_finish_reason": "length"}
    reading = alone(event(model="tiny-llama", x_request_id="x-1", finish_reason_metadata=finish))
    assert reading.facts["answered"] is True
    assert reading.facts["finish_reason"] == "length"
    assert reading.facts["aliases"] == ["x-1"]
    assert {w.code for w in reading.warnings} == {"no_spans"}


@pytest.mark.parametrize("request_fields", [{"model": "m", "output_tokens": 5}, {"output_tokens": 0}])
def test_a_record_that_shows_no_end_is_no_answer(request_fields: dict[str, Any]) -> None:
    # base-2-0101 of capture b was cancelled after 5 tokens: it has a session, hence a model, and no finish reason.
    assert "answered" not in alone(event(**request_fields)).facts


def test_an_estimate_of_zero_is_unknown_not_zero() -> None:
    reading = alone(event(kv_transfer_estimated_latency_ms=0.0))
    assert [c.name for c in reading.ttft_claims] == ["dynamo_nvext"]
    assert [e.value for e in reading.evidence if e.name == "kv_transfer_estimated"] == [None]


def test_an_aggregated_ttft_is_the_user_s() -> None:
    same = {"prefill_worker_id": 5, "decode_worker_id": 5}
    disaggregated, aggregated = alone(EVENT), alone(event(worker=same, kv_transfer_estimated_latency_ms=None))
    assert "PREFILL" in disaggregated.ttft_claims[0].measures
    assert "PREFILL" not in aggregated.ttft_claims[0].measures


@pytest.mark.parametrize(
    "odd",
    [
        {"worker": [], "finish_reason_metadata": "x", "replay": 3},
        {"ttft_ms": "soon", "total_time_ms": -1, "kv_hit_rate": float("nan")},
        {"input_tokens": None, "output_tokens": "many", "request_received_ms": None},
    ],
)
def test_odd_fields_are_unknown_and_break_nothing(odd: dict[str, Any]) -> None:
    reading = alone(event(**odd))
    assert reading.facts["request_id"] == "9e14d2ea-5b03-4572-b469-7ac2312c9e6b"
    assert all(claim.ttft_ns >= 0 for claim in reading.ttft_claims)
    assert all(edge.end_ns >= edge.start_ns for edge in reading.edges)
