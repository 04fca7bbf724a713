"""Spans that no dialect of an engine knows: OpenTelemetry's HTTP and gen_ai conventions."""

from dataclasses import replace

import pytest

from pdtrace.assemble import derive
from pdtrace.dialects.generic import GenericDialect
from pdtrace.model import Key, Span

MS = 1_000_000
T0 = 1_796_074_641_000_000_000
GENERIC = GenericDialect()
INTERNAL, SERVER, CLIENT = 1, 2, 3


def span(name, start_ms, end_ms, parent="", *, kind=SERVER, span_id="a", trace="1", service="app", **more):
    attributes = {key.replace("__", "."): value for key, value in more.items() if key not in ("status", "links")}
    return Span(
        trace_id=trace * 32,
        span_id=span_id * 16,
        parent_id=parent * 16,
        name=name,
        kind=kind,
        start_ns=T0 + round(start_ms * MS),
        end_ns=T0 + round(end_ms * MS),
        scope="some.instrumentation",
        resource={"service.name": service},
        attributes=attributes,
        status=more.get("status", 0),
        links=more.get("links", []),
    )


@pytest.mark.parametrize(
    ("given", "part", "edge"),
    [
        (span("POST /v1/chat/completions", 0, 1), "edge", "frontend"),
        (span("POST", 0, 1, http__route="/v1/completions"), "edge", "frontend"),
        (span("POST", 0, 1, http__target="/openai/v1/completions?beta=1"), "edge", "frontend"),
        (span("POST", 0, 1, url__path="/generate"), "edge", "frontend"),
        (span("llm", 0, 1, gen_ai__request__model="m"), "edge", "frontend"),
        (span("POST /v1/embeddings", 0, 1), "inner", ""),
        (span("GET /health", 0, 1), "noise", ""),
        (span("GET /metrics", 0, 1), "noise", ""),
        (span("chat m", 0, 1, kind=CLIENT, gen_ai__operation__name="chat"), "edge", "client"),
        (span("embeddings m", 0, 1, kind=CLIENT, gen_ai__operation__name="embeddings"), "inner", ""),
        (span("POST", 0, 1, kind=CLIENT, url__full="http://w/v1/completions"), "edge", "client"),
        (span("POST", 0, 1, "b", kind=CLIENT, url__full="http://w/v1/completions"), "leg", ""),
        (span("step", 0, 1, kind=INTERNAL, gen_ai__request__model="m"), "inner", ""),
        (span("POST /v1/completions", 0, 1, kind=0), "inner", ""),
        (span("", 0, 1), "inner", ""),
    ],
)
def test_parts(given, part, edge):
    identity = GENERIC.identify(given)
    assert (identity.part, identity.edge) == (part, edge)


def test_ids_under_old_and_new_names():
    given = span("POST /v1/completions", 0, 1, gen_ai__response__id="cmpl-1", request_id="r")
    given.attributes["http.request.header.x-request-id"] = ["x-1"]
    assert set(GENERIC.identify(given).keys) == {Key("request_id", value) for value in ("cmpl-1", "r", "x-1")}


def test_a_gen_ai_client_span_is_a_request_with_a_first_token():
    client = span(
        "chat m",
        0,
        900,
        kind=CLIENT,
        gen_ai__operation__name="chat",
        gen_ai__response__time_to_first_chunk=0.25,
        gen_ai__response__model="m",
        gen_ai__response__finish_reasons=["stop"],
        gen_ai__usage__input_tokens=11,
        gen_ai__usage__completion_tokens=7,  # the old name
    )
    (request,) = derive([client])
    assert (request.ttft_ns, request.ttft_basis, request.outcome) == (250 * MS, "client", "ok")
    assert (request.model, request.input_tokens, request.output_tokens) == ("m", 11, 7)


def test_minus_one_is_missing_and_nan_is_unknown():
    for value in (-1.0, float("nan"), "soon"):
        given = span("POST /v1/completions", 0, 9, gen_ai__latency__time_to_first_token=value)
        (request,) = derive([given])
        assert request.ttft_ns is None


@pytest.mark.parametrize(
    ("attributes", "status", "outcome"),
    [
        ({"http__response__status_code": 429}, 2, "rejected"),
        ({"http__status_code": 404}, 0, "invalid"),
        ({"http__response__status_code": "500"}, 2, "failed"),
        ({"error__type": "TimeoutError"}, 2, "timed_out"),
        ({"error__type": "asyncio.CancelledError"}, 2, "cancelled"),
        ({"error__type": "ConnectionResetError"}, 2, "failed"),
        ({"http__response__status_code": 200}, 0, "ok"),
        ({"http__response__status_code": 200}, 2, "failed"),
        ({}, 0, "unknown"),
    ],
)
def test_outcomes_from_standard_attributes(attributes, status, outcome):
    (request,) = derive([span("POST /v1/completions", 0, 10, status=status, **attributes)])
    assert request.outcome == outcome


def test_calls_of_a_proxy_are_legs_and_the_outer_span_is_the_request():
    """
    POST /v1/chat/completions  0 - 100   SERVER
      POST                    10 - 40    CLIENT to w1:1
      POST                    45 - 99    CLIENT to w2:2
    """
    spans = [
        span("POST /v1/chat/completions", 0, 100, http__response__status_code=200),
        *(
            span(
                "POST",
                start,
                end,
                "a",
                kind=CLIENT,
                span_id=name,
                url__full="http://w/v1/chat/completions",
                server__address=f"w{port}",
                server__port=port,
            )
            for name, start, end, port in (("c", 10, 40, 1), ("d", 45, 99, 2))
        ),
    ]
    (request,) = derive(spans)
    assert {a.worker for a in request.activities if a.stage.endswith("opaque")} == {"w1:1", "w2:2"}
    totals = request.section_totals_to_end()
    assert "prefill" not in totals
    assert sum(totals.values()) == 100 * MS


def test_orphan_middle_is_one_request_with_a_note():
    """A 0 - 100 -> (missing) -> C 20 - 60: C belongs to A by the trace, and the page says that a parent is missing."""
    a = span("POST /v1/completions", 0, 100, http__response__status_code=200)
    c = span("work", 20, 60, "9", kind=INTERNAL, span_id="c")
    (request,) = derive([c, a])
    assert request.span_count == 2
    assert request.stitched_by == "trace_id"
    assert "parent_missing" in {w.code for w in request.warnings}


def test_a_link_out_of_the_store_is_listed_and_breaks_nothing():
    root = span("POST /v1/completions", 0, 100, links=[("f" * 32, "e" * 16)], gen_ai__latency__time_to_first_token=0.04)
    (request,) = derive([root])
    assert request.ttft_ns == 40 * MS
    assert any("outside this store" in e.text and "f" * 32 in str(e.value) for e in request.evidence)


def test_twenty_calls_of_one_agent_are_twenty_requests():
    agent = span("agent", 0, 2000, kind=INTERNAL)
    calls = [
        span("chat m", 100 * n, 100 * n + 90, "a", kind=CLIENT, span_id=f"{n:x}"[-1], gen_ai__operation__name="chat")
        for n in range(20)
    ]
    calls = [replace(call, span_id=f"{n + 1:016x}") for n, call in enumerate(calls)]
    assert len(derive([agent, *calls])) == 20


def test_an_agents_http_calls_belong_to_the_requests_they_made():
    """
    agent                    0 - 2000  INTERNAL
      POST                 20n - 20n+90  CLIENT, all overlapping
        POST /v1/...     20n+1 - 20n+89  SERVER
    """
    spans = [span("agent", 0, 2000, kind=INTERNAL)]
    for n in range(20):
        call = span("POST", 20 * n, 20 * n + 90, "a", kind=CLIENT, url__path="/v1/completions")
        served = span("POST /v1/completions", 20 * n + 1, 20 * n + 89, http__response__status_code=200, service="llm")
        spans.append(replace(call, span_id=f"{n + 1:016x}"))
        spans.append(replace(served, span_id=f"{n + 101:016x}", parent_id=f"{n + 1:016x}"))
    requests = derive(spans)
    assert len(requests) == 20
    assert {request.span_count for request in requests} == {2}
    assert [request.t0_ns for request in requests] == [T0 + (20 * n + 1) * MS for n in range(20)]  # the server's
    assert not any(request.warnings for request in requests)


def test_a_server_inside_a_server_is_the_same_call():
    outer = span("POST /v1/completions", 0, 100, http__response__status_code=200)
    call = span("POST", 5, 95, "a", kind=CLIENT, span_id="b", url__path="/v1/completions")
    inner = span("POST /v1/completions", 10, 90, "b", span_id="c", service="worker", http__response__status_code=200)
    (request,) = derive([inner, call, outer])
    assert request.t0_ns == outer.start_ns
    assert request.span_count == 3


def test_unknown_spans_alone_make_no_request():
    assert derive([span("cron", 0, 5, kind=INTERNAL), span("GET /v1/models", 0, 1, trace="2")]) == []
