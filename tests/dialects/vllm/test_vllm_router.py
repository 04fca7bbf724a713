"""vllm-router's spans as the dialect reads them, on the real capture."""

from collections import defaultdict
from statistics import median

import pytest

from pdtrace.dialects.vllm import VllmDialect
from pdtrace.dialects.vllm_router import VllmRouterDialect
from pdtrace.model import Span

ROUTER = VllmRouterDialect()


def by_trace(spans):
    traces = defaultdict(list)
    for span in spans:
        if span.scope == "vllm-router" or span.name == "llm_request":
            traces[span.trace_id].append(span)
    return traces


def test_every_call_has_one_edge_and_its_legs_with_roles_and_addresses(capture, read):
    traces = by_trace(capture("pd_vllm_router"))
    readings = [read(ROUTER, spans) for spans in traces.values()]
    assert len(readings) == 40
    assert all(len(out.edges) == 1 and out.edges[0].kind == "router" for out in readings)
    legs = [leg for out in readings for leg in out.legs]
    assert {(leg.role, leg.worker) for leg in legs} == {("prefill", "127.0.0.1:28101"), ("decode", "127.0.0.1:28201")}
    assert len(legs) == 79
    assert not any(leg.failed or leg.end_is_trusted for leg in legs)
    assert {leg.http_status for leg in legs} == {200, None}
    assert not any(out.edges[0].end_is_trusted or out.edges[0].first_token_ns for out in readings)


def test_latency_ms_is_the_time_to_the_headers_and_not_to_a_token(capture, client, read):
    traces = by_trace(capture("pd_vllm_router"))
    to_headers_ms, to_first_chunk_ms = [], []
    for answer in client("pd_vllm_router"):
        if answer["trace_id"] not in traces or not answer["first_chunk_unix_ns"]:
            continue
        out = read(ROUTER, traces[answer["trace_id"]])
        (claim,) = out.ttft_claims
        claimed_ns = out.edges[0].start_ns + claim.ttft_ns
        to_headers_ms.append((answer["headers_unix_ns"] - claimed_ns) / 1e6)
        to_first_chunk_ms.append((answer["first_chunk_unix_ns"] - claimed_ns) / 1e6)
        assert claim.name == "router"
        assert "headers" in claim.measures
    assert len(to_headers_ms) == 35
    assert 0 < median(to_headers_ms) < 3
    assert min(to_headers_ms) > 0
    assert median(to_first_chunk_ms) > 400


def test_the_request_is_named_as_the_client_knows_it(capture, client, read):
    traces = by_trace(capture("pd_vllm_router"))
    named = [
        (read(ROUTER, traces[answer["trace_id"]]).facts["request_id"], answer["request_id"])
        for answer in client("pd_vllm_router")
        if answer["trace_id"] in traces
    ]
    assert len(named) == 35
    assert all(own == clients for own, clients in named)
    spans = traces[client("pd_vllm_router")[0]["trace_id"]]
    assert "request_id" not in read(VllmDialect(), spans).facts  # the engines' id is the router's, not the client's


def test_a_call_dropped_before_an_answer_is_the_callers_going_away(capture, read):
    (gone,) = [
        out
        for out in (read(ROUTER, spans) for spans in by_trace(capture("pd_vllm_router")).values())
        if "client_cancelled_ns" in out.facts
    ]
    assert gone.facts["request_id"] == "cli-5-0039"
    assert gone.facts["client_cancelled_ns"] == gone.edges[0].end_ns
    assert not gone.ttft_claims


def test_a_failed_leg_says_so_and_probes_are_noise():
    def call(**attributes):
        return Span("1" * 32, "2" * 16, "", "POST /v1/completions", 3, 1, 2, "vllm-router", {}, attributes)

    span = call(**{"http.response.status_code": "503", "vllm.request_phase": "decode", "server.address": "d0"})
    out_legs = ROUTER.identify(span)
    assert (out_legs.part, out_legs.role) == ("leg", "decode")
    probe = call(**{"http.request.method": "GET"})
    assert ROUTER.identify(probe).part == "noise"


def test_http_errors_fail_the_leg(read):
    attributes = {"http.response.status_code": "503", "vllm.request_phase": "decode", "server.address": "d0"}
    span = Span("1" * 32, "2" * 16, "", "POST /v1/completions", 3, 1, 2, "vllm-router", {}, attributes)
    (leg,) = read(ROUTER, [span]).legs
    assert (leg.failed, leg.error, leg.http_status, leg.worker) == (True, "HTTP 503", 503, "d0")


@pytest.mark.parametrize("bad", [True, None, "x", [1], {"a": 1}, -1, float("inf"), 1e300, 2**63])
def test_values_of_a_wrong_kind_are_unknown_and_never_a_verdict(read, bad):
    names = ("request_id", "http.response.status_code", "latency_ms")
    span = Span("1" * 32, "2" * 16, "", "POST /v1/completions", 2, 1, 2, "vllm-router", {}, dict.fromkeys(names, bad))
    out = read(ROUTER, [span])
    assert out.edges[0].http_status is None
    assert "client_cancelled_ns" not in out.facts
    assert all(claim.ttft_ns >= 0 for claim in out.ttft_claims)
    assert isinstance(out.facts.get("request_id", ""), str)
