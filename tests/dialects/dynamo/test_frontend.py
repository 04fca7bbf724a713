"""What one http-request span says, on hand-made spans with the names and values of the captures."""

from __future__ import annotations

import pytest

from pdtrace.dialects.dynamo import DynamoDialect
from pdtrace.model import Reading, Span
from tests.dialects.dynamo.conftest import EDGE, MS, T0, make_http, make_payload, make_route, make_span, readings

RECEIVED = (0.4, "request received", {"model": "tiny-llama", "request_type": "stream"})
SENT = (60.0, "http response sent", {"status": "200"})


def read(*spans: Span) -> Reading:
    found = readings(spans)
    assert len(found) == 1
    return next(iter(found.values()))


def test_ttft_counts_from_request_received() -> None:
    # base-2-0099 of capture b: the span began at 0.50, the request was read at 4.79, ttft_ms 59.67, and the client had
    # its token at 64.88. From the span's start the token would have been there at 60.17.
    received = (4.79, "request received", {"request_type": "stream"})
    reading = read(make_http((0.5, 64.89), [received, SENT], ttft_ms="59.67", request__outcome="success"))
    assert reading.edges[0].first_token_ns == T0 + round(64.46 * MS)
    assert [(c.name, c.ttft_ns) for c in reading.ttft_claims] == [("frontend", round(59.67 * MS))]


def test_ttft_counts_from_the_span_if_nothing_better_is_known() -> None:
    reading = read(make_http((0, 100), [SENT], ttft_ms="59.67"))
    assert reading.edges[0].first_token_ns == T0 + round(59.67 * MS)


@pytest.mark.parametrize("nonsense", ["-1", "nan", "soon", True, "101.5", 2**70, "1e305"])
def test_a_nonsense_ttft_is_no_first_token(nonsense: object) -> None:
    reading = read(make_http((0, 100), [RECEIVED, SENT], ttft_ms=nonsense))
    assert reading.edges[0].first_token_ns is None
    assert [w.code for w in reading.warnings] == ["bad_ttft"]


def test_completions_carry_no_outcome_and_no_model_of_their_own() -> None:
    wrap = make_span("completions_single", (0.3, 99), events=[(0.4, *RECEIVED[1:])])
    http = make_http((0, 100), [SENT], uri="/v1/completions", ttft_ms="70.46", input_tokens="1090", output_tokens="32")
    reading = read(http, wrap)
    assert reading.facts["model"] == "tiny-llama"
    assert reading.facts["stream"] is True
    assert reading.facts["answered"] is True
    assert reading.edges[0].first_token_ns == T0 + round(70.86 * MS)


@pytest.mark.parametrize(
    ("error_type", "status"), [("validation", 400), ("not_found", 404), ("overload", 529), ("internal", 500)]
)
def test_status_from_the_error_type_where_no_answer_was_logged(error_type: str, status: int) -> None:
    completed = (9.0, "request completed", {"status": "error", "error_type": error_type, "error_detail": "why"})
    reading = read(make_http((0, 10), [RECEIVED, completed], status=2, request__outcome="error"))
    assert reading.facts["http_status"] == reading.edges[0].http_status == status
    assert reading.facts["error"] == "why"
    assert "answered" not in reading.facts


def test_an_over_long_prompt_is_refused_inside_a_200_stream() -> None:
    refused = "request rejected: request exceeds worker admission limits"
    events = [
        RECEIVED,
        (5.0, "http response sent", {"status": "200"}),
        (8.0, f"Error processing common response: {refused}\n\nStack backtrace:\n   0: anyhow::kind", {}),
        (8.1, f"Streaming error: {refused}", {}),
        (
            9.0,
            "request completed",
            {"status": "error", "error_type": "internal", "error_detail": "internal server error"},
        ),
    ]
    http = make_http((0, 10), events, status=2, request__outcome="error", input_tokens="0", output_tokens="0")
    prefill = make_route((1, 4), "Prefill", "7", request__outcome="success")
    reading = read(http, prefill, make_payload((1.5, 3), prefill, "prefill", "7"))
    assert reading.facts["over_long_prompt"] is True
    assert reading.facts["error"] == refused
    assert reading.facts["http_status"] == 200
    assert "input_tokens" not in reading.facts
    assert reading.failures == []


def test_a_stream_that_broke_fails_where_the_last_call_was() -> None:
    events = [RECEIVED, SENT, (80.0, "Streaming error: engine died\n   0: backtrace", {})]
    reading = read(
        make_http((0, 90), events, status=2, request__outcome="error"),
        make_route((1, 40), "Prefill", "7", request__outcome="success"),
        make_route((41, 85), "Decode", "9", request__outcome="cancelled", cancellation__signal="stop"),
    )
    assert [(f.stage, f.text, f.worker) for f in reading.failures] == [("decode", "engine died", "9")]


def test_a_client_that_left_is_noticed_late_and_says_so() -> None:
    # base-2-0103 of capture b: the client left at 81 ms, the prefill ran on, and the front end noticed at 374 ms.
    completed = (374.33, "request completed", {"status": "cancelled", "error_type": "cancelled"})
    reading = read(make_http((1.46, 374.35), [RECEIVED, completed], request__outcome="cancelled"))
    assert reading.facts["client_cancelled_ns"] == T0 + round(374.33 * MS)
    assert reading.facts.get("http_status") is None
    assert any(e.name == "client_cancel_noticed" for e in reading.evidence)


def test_a_response_timeout_is_no_answer() -> None:
    completed = (50.0, "request completed", {"status": "error", "error_type": "response_timeout"})
    reading = read(make_http((0, 51), [RECEIVED, completed], status=2, request__outcome="error"))
    assert reading.facts["timed_out_ns"] == T0 + 50 * MS
    assert "answered" not in reading.facts


def test_success_with_status_error_is_an_answer() -> None:
    # After a migration http-request can have status ERROR and outcome success.
    assert read(make_http((0, 100), [RECEIVED, SENT], status=2, request__outcome="success")).facts["answered"] is True


def test_an_open_request_has_no_end_and_no_outcome() -> None:
    reading = read(make_http((0, 0), [RECEIVED]))
    assert reading.edges[0].end_ns == 0
    assert not {"answered", "client_cancelled_ns", "error"} & set(reading.facts)


def test_probes_are_noise_and_strangers_are_not_ours() -> None:
    dialect = DynamoDialect()
    probe = make_http((0, 1), method="GET", uri="/health")
    identity = dialect.identify(probe)
    assert identity is not None
    assert identity.part == "noise"
    assert dialect.identify(make_span("http-request", (0, 1), parent="", url="/")) is None
    assert dialect.identify(make_span("handle_payload", (0, 1), size=3)) is None
    assert dialect.identify(make_span("HTTP POST", (0, 1))) is None


def test_the_edge_joins_on_both_ids_and_the_service_name_is_irrelevant() -> None:
    span = make_http((0, 1))
    span.resource = {"service.name": "my-gateway"}
    identity = DynamoDialect().identify(span)
    assert identity is not None
    assert (identity.part, identity.edge) == ("edge", "frontend")
    assert {key.value for key in identity.keys} == {"9e14d2ea-5b03-4572-b469-7ac2312c9e6b", "x-1"}
    assert span.span_id == EDGE
