"""TensorRT-LLM's records and spans as requests: sections against the right answers."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdtrace.assemble import derive
from pdtrace.dialects.trtllm_perf_metrics import perf_metrics_record
from pdtrace.model import Span

SHARED = Path(__file__).parents[4] / "shared"
MS = 1_000_000


def entry_of(name):
    if not SHARED.is_dir():
        pytest.skip(f"the TensorRT-LLM samples are not beside this checkout: {SHARED}")
    (entry,) = json.loads((SHARED / "data" / "trtllm" / name).read_text())
    return entry


def request_of(entry):
    (request,) = derive([], [perf_metrics_record(entry)])
    return request


def totals_ms(request):
    return {stage: ns / MS for stage, ns in request.section_totals().items()}


def test_the_readme_sample_adds_up_to_95_ms_with_its_relay():
    request = request_of(entry_of("perf_metrics_readme_sample.json"))
    with (SHARED / "cases" / "cases.jsonl").open() as lines:
        (case,) = [c for c in map(json.loads, lines) if c["id"] == "trtllm-stage-list-misses-relay"]
    assert request.ttft_ns == 95 * MS
    assert totals_ms(request) == case["expected_sections_ms"]
    assert (request.ttft_basis, request.mode, request.outcome) == ("router", "sequential", "ok")
    assert (request.t0_ns, request.clock) == (1995 * MS, "steady:proxy")
    assert all(offset.applied_ns == 0 for offset in request.offsets)


def test_transfer_stamps_are_the_handoff():
    request = request_of(entry_of("perf_metrics_testvalues_with_kv.json"))
    # proxy 999.9 s - 1001.6 s
    #   route          999.90 - 1000.00
    #   prefill_queue 1000.20 - 1000.25   prefill 1000.25 - 1000.50   @ctx
    #   decode_queue  1001.30 - 1001.35   with handoff 1001.31 - 1001.33 in it, first_token - 1001.50   @gen
    assert totals_ms(request) == {
        "route": 100,
        "relay": 200 + 800,
        "prefill_queue": 50,
        "prefill": 250,
        "decode_queue": 30,
        "handoff": 20,
        "first_token": 150,
        "egress": 100,
    }
    assert request.ttft_ns == 1700 * MS
    assert request.hidden_ns.get("decode_queue") == 20 * MS


def test_an_inverted_order_across_hosts_is_unknown_counted_and_still_adds_up():
    entry = copy.deepcopy(entry_of("perf_metrics_testvalues_with_kv.json"))
    ctx = entry["ctx_perf_metrics"]["perf_metrics"]["timing_metrics"]
    gen = entry["gen_perf_metrics"]["perf_metrics"]["timing_metrics"]
    ctx.update(first_token_time=1001.4, server_first_token_time=1001.4)
    for name in ("kv_cache_transfer_start", "kv_cache_transfer_end"):
        del gen[name]
    gen.update(server_arrival_time=1001.3, arrival_time=1001.3)
    entry.update(ctx_server="a:8001", gen_server="b:8002", disagg_server_first_token_time=1001.8)
    request = request_of(entry)
    assert "handoff" not in request.section_totals()
    assert "inverted_gap" in {w.code for w in request.warnings}
    assert [e.value for e in request.evidence if e.name == "inverted_gap"] == [100 * MS]
    assert sum(request.section_totals().values()) == request.ttft_ns == 1900 * MS
    assert (request.prefill_worker, request.decode_worker) == ("a:8001", "b:8002")


def test_a_clock_fault_beyond_the_limit_moves_nothing():
    entry = copy.deepcopy(entry_of("perf_metrics_readme_sample.json"))
    gen = entry["gen_perf_metrics"]["perf_metrics"]["timing_metrics"]
    for name in gen:
        gen[name] += 500.0
    request = request_of(entry)
    assert "clock_shift_refused" in {w.code for w in request.warnings}
    assert request.ttft_ns == 95 * MS
    assert sum(request.section_totals().values()) == 95 * MS
    assert "decode_queue" not in request.section_totals()


def worker_span(span_id, start_ms, end_ms, instance, parent="e" * 16, trace_id="1" * 32, **attributes):
    resource = {"service.name": "unknown_service", "service.instance.id": instance}
    return Span(
        trace_id, span_id, parent, "llm_request", 2, start_ms * MS, end_ms * MS, "trt.llm", resource, attributes
    )  # fmt: skip


def spans_of_a_request():
    latency = "gen_ai.latency"
    proxy = Span("1" * 32, "e" * 16, "", "disaggregated_request", 2, 1000 * MS, 1210 * MS, "trt.llm", {}, {}, status=1)
    ctx = worker_span(
        "a" * 16, 1010, 1200, "ctx-0",
        **{"gen_ai.request.id": 3, "gen_ai.response.finish_reasons": '["not_finished"]', f"{latency}.e2e": 0.19,
           f"{latency}.time_to_first_token": 0.18, f"{latency}.time_in_queue": 0.03, "gen_ai.usage.completion_tokens": 1},
    )  # fmt: skip
    gen = worker_span(
        "b" * 16, 1215, 1900, "gen-0",
        **{"gen_ai.request.id": 3, "gen_ai.response.finish_reasons": '["length"]', f"{latency}.e2e": 0.685,
           f"{latency}.time_to_first_token": 0.085, f"{latency}.time_in_queue": 0.06, "gen_ai.usage.completion_tokens": 20},
    )  # fmt: skip
    return proxy, ctx, gen


def test_spans_of_a_proxy_that_sends_trace_headers():
    (request,) = derive(list(spans_of_a_request()), [])
    # proxy 1000 - (its end is when the stream was handed over)
    #   prefill_queue 1010 - 1040  prefill 1040 - 1190, to 1200 nothing  @ctx
    #   decode_queue 1215 - 1275  first_token 1275 - 1300                @gen
    assert (request.prefill_worker, request.decode_worker) == ("ctx-0", "gen-0")
    assert (request.mode, request.outcome, request.ttft_basis) == ("sequential", "ok", "router")
    assert request.ttft_ns == 300 * MS
    totals = totals_ms(request)
    assert {s: totals[s] for s in ("ingress", "prefill_queue", "prefill", "decode_queue", "first_token")} == {
        "ingress": 10,
        "prefill_queue": 30,
        "prefill": 150,
        "decode_queue": 60,
        "first_token": 25,
    }
    assert sum(totals.values()) == 300
    assert "may_hold_transfer" in {w.code for w in request.warnings}


def test_equal_ids_of_two_workers_are_two_requests_without_trace_headers():
    _, ctx, gen = spans_of_a_request()
    requests = derive([replace(ctx, parent_id=""), replace(gen, trace_id="2" * 32, parent_id="")], [])
    assert len(requests) == 2
    assert sorted(str(r.ttft_ns) for r in requests) == [str(85 * MS), "None"]  # P alone never ends a window
