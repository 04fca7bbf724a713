"""The smg router's span, alone and drawn by hand."""

import pytest

from pdtrace.dialects.contract import Tree
from pdtrace.dialects.sglang_router import SmgRouterDialect
from pdtrace.model import Key, Reading, Span, SpanEvent

SMG = SmgRouterDialect()
MS = 1_000_000
P, D = "http://p:1", "http://d:2"


def http_request(*events, end_ms=100.0, **attributes):
    """An http_request from 0 ms; events are (ms, name, attributes)."""
    named = {"method": "POST", "uri": "/v1/chat/completions", "request_id": "r-1", **attributes}
    return Span(
        trace_id="1" * 32,
        span_id="a" * 16,
        parent_id="",
        name="http_request",
        kind=1,
        start_ns=1_000 * MS,
        end_ns=1_000 * MS + round(end_ms * MS),
        scope="smg",
        resource={"service.name": "smg"},
        attributes={key: value for key, value in named.items() if value is not None},
        events=[SpanEvent(1_000 * MS + round(ms * MS), name, fields) for ms, name, fields in events],
    )


def sending(ms):
    return (ms, "Sending concurrent requests", {"prefill_url": P, "decode_url": D})


def received(ms):
    return (ms, "Received concurrent requests", {})


def read(span):
    out = Reading()
    SMG.read([span], Tree([span], {span.key: SMG.identify(span)}), out)
    return out


@pytest.mark.parametrize(
    ("method", "uri", "part"),
    [
        ("GET", "/readiness", "noise"),
        ("POST", "/flush_cache", "noise"),
        ("GET", "/v1/models", "noise"),
        ("POST", "/v1/completions?x=1", "edge"),  # refused before it was sent: a request all the same
        ("POST", "/generate", "edge"),
    ],
)
def test_only_inference_calls_are_requests(method, uri, part):
    assert SMG.identify(http_request(method=method, uri=uri)).part == part


def test_anything_that_was_sent_on_is_a_request():
    identity = SMG.identify(http_request(sending(1), uri="/v1/rerank"))
    assert (identity.part, identity.edge, identity.keys) == ("edge", "router", (Key("request_id", "r-1"),))


def test_routing_ends_with_the_dispatch_and_strings_are_numbers():
    out = read(http_request(sending(2), received(60), status_code="200", latency="61000"))
    (route,) = out.activities
    assert (route.stage, route.end_ns - route.start_ns) == ("route", 2 * MS)
    assert out.edges[0].http_status == 200
    assert not out.edges[0].end_is_trusted
    assert [(leg.role, leg.worker) for leg in out.legs] == [("prefill", P), ("decode", D)]
    assert out.facts["mode"] == "overlapped"
    assert "stream" not in out.facts  # nothing tells


def test_a_retry_is_a_second_attempt_and_nothing_is_said_of_the_time_before_it():
    out = read(http_request(sending(1), received(30), sending(50), received(90), status_code="500", latency="90000"))
    assert out.facts["attempts"] == 2
    assert [(a.stage, a.attempt, (a.end_ns - a.start_ns) // MS) for a in out.activities] == [("route", 0, 1)]
    assert {leg.attempt for leg in out.legs} == {0, 1}
    assert out.edges[0].end_ns == 1_090 * MS  # an error ends with its headers


def test_a_call_that_was_never_sent_failed_at_routing():
    out = read(http_request(status_code="503", latency="200"))
    assert [f.stage for f in out.failures] == ["route"]
    assert out.legs == []


def test_a_span_without_a_status_is_a_caller_that_hung_up():
    out = read(http_request(sending(1), end_ms=23_000.0))
    assert out.facts["client_cancelled_ns"] == 24_000 * MS
    assert out.edges[0].http_status is None


def test_garbage_numbers_are_unknown():
    out = read(http_request(sending(1), received(2), status_code="two hundred", latency="-5"))
    assert out.edges[0].http_status is None
    assert out.ttft_claims == []


def test_a_single_worker_is_an_aggregated_leg():
    out = read(http_request((1, "Sending request", {"url": "http://w:3"}), received(50), status_code="200"))
    assert [(leg.role, leg.worker) for leg in out.legs] == [("aggregated", "http://w:3")]
    assert "mode" not in out.facts
