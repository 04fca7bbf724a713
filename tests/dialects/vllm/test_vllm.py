"""vLLM's spans as the dialect reads them, before any grouping."""

import dataclasses

import pytest

from pdtrace.dialects.vllm import VllmDialect
from pdtrace.model import Span

VLLM = VllmDialect()
SECOND_NS = 1_000_000_000


def visit(span_id="a" * 16, service="vllm", start_ns=100 * SECOND_NS, end_ns=103 * SECOND_NS, **attributes):
    """One engine visit; keyword arguments are latencies in seconds or, with their dots as __, whole names."""
    named = {
        "gen_ai.request.id": "cmpl-abc-0",
        "gen_ai.request.max_tokens": 16,
        "gen_ai.usage.prompt_tokens": 8,
        "gen_ai.usage.completion_tokens": 16,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.e2e": 2.999,
        "gen_ai.latency.time_in_queue": 0.25,
        "gen_ai.latency.time_in_model_prefill": 0.5,
    }
    named.update({name.replace("__", "."): value for name, value in attributes.items()})
    return Span(
        trace_id="1" * 32,
        span_id=span_id,
        parent_id="",
        name="llm_request",
        kind=2,
        start_ns=start_ns,
        end_ns=end_ns,
        scope="vllm.tracing.otel",
        resource={"service.name": service, "service.instance.id": f"{service}-1"},
        attributes=named,
    )


def test_an_envelope_has_the_arrival_the_first_token_and_the_exact_durations(read):
    out = read(VLLM, [visit()])
    (envelope,) = out.envelopes
    assert envelope.first_token_ns == 101 * SECOND_NS
    assert (envelope.queue_ns, envelope.prefill_ns) == (SECOND_NS // 4, SECOND_NS // 2)
    assert (envelope.input_tokens, envelope.output_tokens, envelope.cached_tokens) == (8, 16, None)
    assert (envelope.worker, envelope.clock, envelope.role) == ("vllm-1", "process:vllm-1", "")
    assert out.facts["request_id"] == "cmpl-abc"
    assert set(out.facts["aliases"]) >= {"abc", "cmpl-abc-0"}


def test_no_token_is_no_first_token_although_a_ttft_is_reported(read):
    (envelope,) = read(VLLM, [visit(gen_ai__usage__completion_tokens=0)]).envelopes
    assert envelope.first_token_ns is None
    assert envelope.finished


def test_a_negative_duration_voids_the_durations_and_keeps_the_wall_clock_ttft(read):
    out = read(VLLM, [visit(gen_ai__latency__time_in_queue=-3.5)])
    (envelope,) = out.envelopes
    assert envelope.void_durations
    assert (envelope.queue_ns, envelope.prefill_ns) == (None, None)
    assert envelope.first_token_ns == 101 * SECOND_NS
    assert not out.failures


@pytest.mark.parametrize("ttft", [-0.5, 9.0, "nonsense", None, float("nan")])
def test_an_impossible_ttft_is_unknown_and_never_negative(read, ttft):
    (envelope,) = read(VLLM, [visit(gen_ai__latency__time_to_first_token=ttft)]).envelopes
    assert envelope.first_token_ns is None


def test_a_load_failure_on_d_fails_the_handoff_and_reports_no_time(read, capture):
    spans = [s for s in capture("pd_nixl_contended") if s.attributes.get("gen_ai.request.id") == "cmpl-cli-2-0000-0"]
    assert len(spans) == 2
    out = read(VLLM, spans)
    prefill, decode = sorted(out.envelopes, key=lambda e: e.role_hint, reverse=True)
    assert (decode.role_hint, decode.failed, decode.finished) == ("decode", True, False)
    assert (decode.first_token_ns, decode.queue_ns, decode.prefill_ns) == (None, None, None)
    assert decode.void_durations
    (failure,) = out.failures
    assert failure.stage == "handoff"
    assert "KV load failed" in failure.text
    assert "-1315.985721547 s" in failure.text
    assert prefill.first_token_ns is not None
    assert not prefill.failed


def test_a_prefill_that_was_never_scheduled_failed_at_prefill(read):
    out = read(
        VLLM,
        [visit(service="vllm-prefill", gen_ai__usage__completion_tokens=0, gen_ai__latency__time_in_queue=-1400.0)],
    )
    assert [f.stage for f in out.failures] == ["prefill"]


def test_start_up_spans_are_noise_and_an_integer_id_is_another_engines(capture):
    parts = {}
    for span in capture("agg"):
        identity = VLLM.identify(span)
        parts.setdefault((span.name == "llm_request", identity.part), []).append(span)
    assert {key: len(spans) for key, spans in parts.items()} == {(True, "worker"): 53, (False, "noise"): 12}
    assert VLLM.identify(visit(gen_ai__request__id=7)) is None
    assert VLLM.identify(dataclasses.replace(visit(), name="prefill Req 1", scope="sglang server")) is None


@pytest.mark.parametrize(
    ("first", "second", "hints"),
    [
        (("vllm-prefill", 16), ("vllm-decode", 16), ["prefill", "decode"]),
        (("vllm", 1), ("vllm", 16), ["prefill", "decode"]),  # P is capped at one token
        (("vllm", 1), ("vllm", 1), ["", ""]),  # two answers of one token each: n = 2
        (("vllm-prefill-decode", 16), ("vllm", 16), ["", ""]),
    ],
)
def test_hints_of_a_role(read, first, second, hints):
    visits = [
        visit("a" * 16, first[0], gen_ai__request__max_tokens=first[1]),
        visit("b" * 16, second[0], gen_ai__request__max_tokens=second[1]),
    ]
    assert [e.role_hint for e in read(VLLM, visits).envelopes] == hints


def test_a_lone_visit_of_one_token_is_not_called_prefill(read):
    assert read(VLLM, [visit(gen_ai__request__max_tokens=1)]).envelopes[0].role_hint == ""


def test_a_declared_role_and_gpus_are_taken(read):
    span = visit()
    span.resource = {**span.resource, "pdtrace.worker.role": "decode", "pdtrace.worker.gpus": 4}
    (envelope,) = read(VLLM, [span]).envelopes
    assert (envelope.role, envelope.gpus, VLLM.identify(span).role) == ("decode", 4, "decode")
