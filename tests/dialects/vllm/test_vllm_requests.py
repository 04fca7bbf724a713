"""vLLM's captures as requests: counts, joins, outcomes and sections against what the clients wrote down."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from itertools import pairwise
from statistics import median

import pytest

from pdtrace.assemble import derive
from pdtrace.model import Span

TRACES = ("agg", "agg_bench", "agg_lmcache", "pd_nixl_contended", "pd_vllm_router")


def first_chunk_late_ms(requests, answers):
    """How much later than the request's first token its client saw the first chunk."""
    seen = {}
    for answer in answers:
        for name in (answer["trace_id"], answer["request_id"], answer.get("response_id")):
            seen[name] = answer["first_chunk_unix_ns"]
    late = []
    for request in requests:
        chunk_ns = next((seen[n] for n in (*request.trace_ids, request.request_id) if seen.get(n)), None)
        if request.t1_ns is not None and chunk_ns is not None:
            late.append((chunk_ns - request.t1_ns) / 1e6)
    return late


def codes(request):
    return {warning.code for warning in request.warnings}


@pytest.mark.parametrize("name", TRACES)
def test_sections_tile_the_window_and_nothing_is_negative(capture, name):
    requests = derive(capture(name), [])
    assert requests
    for request in requests:
        sections = request.sections if request.t1_ns is not None else request.sections_to_end
        assert all(section.end_ns > section.start_ns for section in sections)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(sections))
        assert all(a.end_ns >= a.start_ns for a in request.activities)
        assert all(ns >= 0 for ns in request.hidden_ns.values())
        if request.t1_ns is None:
            assert (request.ttft_ns, request.ttft_basis, request.sections) == (None, None, [])
            assert request.outcome not in ("ok", "ok_fallback")
        else:
            assert request.ttft_ns == request.t1_ns - request.t0_ns > 0
            assert sum(request.section_totals().values()) == request.ttft_ns
            assert (sections[0].start_ns, sections[-1].end_ns) == (request.t0_ns, request.t1_ns)


def test_aggregated_requests_are_what_the_client_sent_less_the_unsampled_and_the_aborted(capture, client):
    requests = derive(capture("agg"), [])
    answers = client("agg")
    exported = [a for a in answers if a["status"] == "ok" and not (a["traceparent"] or "").endswith("-00")]
    assert len(requests) == len(exported) == 53
    assert {r.request_id for r in requests} == {a["response_id"] for a in exported}
    assert all("cli-1-" in alias for r in requests for alias in r.aliases)
    assert {(r.mode, r.outcome, r.ttft_basis, r.stitched_by) for r in requests} == {
        ("aggregated", "ok", "engines", "none")
    }
    assert all("no_edge_span" in codes(r) for r in requests)
    assert {stage for r in requests for stage in r.section_totals()} <= {"prefill_queue", "prefill"}
    late = first_chunk_late_ms(requests, answers)
    assert len(late) == 53
    assert min(late) > 0
    assert median(late) == pytest.approx(6.7, abs=0.1)


def test_the_wait_before_the_scheduler_is_queue_and_its_residual_evidence(capture):
    residuals = [e.value for r in derive(capture("agg"), []) for e in r.evidence if e.name == "queue_residual"]
    assert len(residuals) == 53
    assert median(residuals) / 1e6 == pytest.approx(8, abs=1)
    assert max(residuals) / 1e6 == pytest.approx(671, abs=1)


def test_p_and_d_are_one_request_whoever_forwarded_the_trace(capture, client):
    requests = derive(capture("pd_nixl_contended"), [])
    assert len(requests) == 44
    pairs = [r for r in requests if r.prefill_worker and r.decode_worker]
    assert len(pairs) == 34
    assert {len(r.trace_ids) for r in pairs} == {1, 2}  # two calls came without a traceparent
    assert Counter(r.mode for r in pairs) == {"sequential": 34}
    assert len({r.prefill_worker for r in pairs}) == len({r.decode_worker for r in pairs}) == 1
    answered = [r for r in pairs if r.outcome == "ok"]
    assert len(answered) == 33
    assert all("may_hold_transfer" in codes(r) and "no_edge_span" in codes(r) for r in answered)
    assert all(r.input_tokens and r.output_tokens for r in answered)
    assert all("relay" not in r.section_totals() for r in answered)  # no proxy span: nobody covers the way from P to D
    late = first_chunk_late_ms(answered, client("pd_nixl_contended"))
    assert len(late) == 33
    assert min(late) > 0
    assert median(late) == pytest.approx(21.4, abs=0.1)


def test_without_any_trace_context_p_and_d_are_joined_by_their_equal_id(capture):
    def alone(span):
        own = hashlib.sha256(f"{span.trace_id}{span.span_id}".encode()).hexdigest()[:32]
        return dataclasses.replace(span, trace_id=own, parent_id="")

    forwarded = derive(capture("pd_nixl_contended"), [])
    dropped = derive([alone(span) for span in capture("pd_nixl_contended") if span.name == "llm_request"], [])

    def told(request):
        return (request.request_id, request.outcome, request.mode, request.ttft_ns, request.section_totals())

    assert sorted(map(told, dropped), key=str) == sorted(map(told, forwarded), key=str)
    assert Counter(r.stitched_by for r in dropped) == {"request_id": 34, "none": 10}
    assert Counter(len(r.trace_ids) for r in dropped) == {2: 34, 1: 10}


def test_a_kv_load_failure_is_a_failed_handoff_without_a_ttft(capture, client):
    (failed,) = [r for r in derive(capture("pd_nixl_contended"), []) if r.outcome == "failed_handoff"]
    assert failed.request_id == "cmpl-cli-2-0000"
    assert "KV load failed" in failed.outcome_text
    assert (failed.ttft_ns, failed.t1_ns, failed.sections) == (None, None, [])
    assert {c.name for c in failed.ttft_claims} == {"prefill_engine"}
    assert failed.section_totals_to_end()["decode_opaque"] > 5e9
    (answer,) = [a for a in client("pd_nixl_contended") if a["status"] == "error"]
    assert answer["trace_id"] in failed.trace_ids


def test_the_router_joins_by_parent_and_shows_its_relay(capture, client):
    requests = derive(capture("pd_vllm_router"), [])
    assert len(requests) == 40
    assert {r.stitched_by for r in requests} == {"parent"}
    answered = [r for r in requests if r.t1_ns is not None]
    assert len(answered) == 36
    assert {(r.outcome, r.ttft_basis, r.mode) for r in answered} == {("ok", "router", "sequential")}
    assert all(r.section_totals()["relay"] > 0 for r in answered)
    names = {a["request_id"] for a in client("pd_vllm_router")}
    assert sum(r.request_id in names for r in requests) == 37  # of 38: the unsampled one is in no span
    late = first_chunk_late_ms(answered, client("pd_vllm_router"))
    assert len(late) == 35
    assert min(late) > 0
    assert median(late) == pytest.approx(7.6, abs=0.5)


def test_a_d_that_sent_no_span_is_its_leg_and_a_lost_call_is_cancelled(capture):
    requests = derive(capture("pd_vllm_router"), [])
    silent = [r for r in requests if "worker_sent_no_span" in codes(r)]
    assert Counter(r.outcome for r in silent) == {"unknown": 3, "cancelled": 1}
    assert {r.decode_worker for r in silent if r.outcome == "unknown"} == {"127.0.0.1:28201"}
    assert all(r.section_totals_to_end() for r in silent)


def test_several_answers_of_one_worker_are_one_aggregated_request_with_the_earliest_first_token():
    def answer(index, start_ns, ttft_s):
        attributes = {
            "gen_ai.request.id": f"{index}_cmpl-abc-0",
            "gen_ai.request.max_tokens": 1,
            "gen_ai.usage.completion_tokens": 1,
            "gen_ai.latency.time_to_first_token": ttft_s,
            "gen_ai.latency.time_in_queue": 0.1,
            "gen_ai.latency.time_in_model_prefill": 0.2,
        }
        resource = {"service.name": "vllm", "service.instance.id": "w0"}
        end_ns = start_ns + round(ttft_s * 1e9) + 1_000_000
        scope = "vllm.tracing.otel"
        return Span(
            f"{index}" * 32, f"{index}" * 16, "", "llm_request", 2, start_ns, end_ns, scope, resource, attributes
        )  # fmt: skip

    (request,) = derive([answer(1, 10_000_000_000, 0.5), answer(2, 10_000_000_000, 0.4)], [])
    assert (request.mode, request.outcome, request.stitched_by) == ("aggregated", "ok", "request_id")
    assert (request.ttft_ns, request.output_tokens) == (400_000_000, 2)
    assert "role_from_order" not in codes(request)


def test_d_alone_says_that_its_ttft_is_a_lower_bound(capture):
    decode_only = [s for s in capture("pd_nixl_contended") if "decode" in str(s.resource.get("service.name"))]
    requests = derive(decode_only, [])
    assert len(requests) == 34
    assert all("prefill_not_seen" in codes(r) for r in requests)
    assert {r.prefill_worker for r in requests} == {None}


@pytest.mark.parametrize("instance", [True, False])
def test_without_service_names_p_is_the_one_token_that_came_first(capture, instance):
    def nameless(span):
        named = {"service.instance.id": span.resource["service.instance.id"]} if instance else {}
        return dataclasses.replace(span, resource={"service.name": "unknown_service:python", **named})

    named = {r.request_id: r for r in derive(capture("pd_nixl_contended"), []) if r.outcome == "ok"}
    told = {r.request_id: r for r in derive([nameless(s) for s in capture("pd_nixl_contended")], [])}
    assert len(named) == 33
    for name, request in named.items():
        assert told[name].section_totals() == request.section_totals()
        assert told[name].mode == "sequential"
