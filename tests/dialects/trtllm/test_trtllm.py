"""TensorRT-LLM's spans as the dialect reads them (shapes from its source: no capture exists)."""

import pytest

from pdtrace.dialects.contract import Tree
from pdtrace.dialects.trtllm import TrtllmDialect
from pdtrace.model import Identity, Reading, Span, SpanEvent

TRTLLM = TrtllmDialect()
MS = 1_000_000


def worker_span(span_id="a" * 16, start_ms=1000, end_ms=1200, instance="ctx-0", events=(), **latencies):
    attributes = {"gen_ai.request.id": 3, "gen_ai.usage.prompt_tokens": 128, "gen_ai.usage.completion_tokens": 1}
    reasons = latencies.pop("reasons", None)
    if reasons is not None:
        attributes["gen_ai.response.finish_reasons"] = reasons
    seconds = {"time_to_first_token": 0.15, "e2e": 0.2, "time_in_queue": 0.05, **latencies}
    attributes.update({f"gen_ai.latency.{name}": value for name, value in seconds.items()})
    resource = {"service.name": "unknown_service"} | ({"service.instance.id": instance} if instance else {})
    return Span(
        "1" * 32, span_id, "e" * 16, "llm_request", 2, start_ms * MS, end_ms * MS, "trt.llm", resource, attributes,
        list(events),
    )  # fmt: skip


def proxy_span(status=1):
    return Span(
        "1" * 32, "e" * 16, "", "disaggregated_request", 2, 990 * MS, 1190 * MS, "trt.llm", {}, {}, status=status
    )


def read(*spans):
    parts = {s.key: TRTLLM.identify(s) or Identity("", "inner") for s in spans}
    out = Reading()
    tree = Tree(spans, parts)
    TRTLLM.read(tree.spans, tree, out)
    return out


def test_a_context_worker_is_known_by_its_unfinished_answer():
    ctx = worker_span(reasons='["not_finished"]')
    gen = worker_span("b" * 16, 1200, 1500, "gen-0", reasons='["length"]')
    out = read(proxy_span(), ctx, gen)
    assert [(e.role, e.role_hint) for e in out.envelopes] == [("prefill", ""), ("", "decode")]
    assert out.facts["finish_reason"] == "length"
    (edge,) = out.edges
    assert (edge.kind, edge.end_is_trusted, edge.first_token_ns) == ("router", False, None)


def test_prefill_is_what_is_left_of_ttft_after_the_queue():
    (envelope,) = read(worker_span(reasons='["not_finished"]')).envelopes
    assert (envelope.queue_ns, envelope.prefill_ns, envelope.first_token_ns) == (50 * MS, 100 * MS, 1150 * MS)


def test_minus_one_is_missing_and_no_duration():
    out = read(worker_span(time_to_first_token=-1, time_in_queue=-1))
    (envelope,) = out.envelopes
    assert (envelope.queue_ns, envelope.prefill_ns, envelope.first_token_ns) == (None, None, None)
    assert not out.warnings


def test_without_e2e_the_span_starts_after_its_end_and_nothing_is_placed():
    out = read(worker_span(start_ms=2200, end_ms=1200, e2e=-1))
    (envelope,) = out.envelopes
    assert (envelope.start_ns, envelope.end_ns) == (1200 * MS, 1200 * MS)
    assert (envelope.first_token_ns, envelope.queue_ns, envelope.prefill_ns) == (None, None, None)
    assert [w.code for w in out.warnings] == ["start_unknown"]


def test_more_queue_than_ttft_places_neither():
    out = read(worker_span(time_in_queue=0.5))
    assert (out.envelopes[0].queue_ns, out.envelopes[0].prefill_ns) == (None, None)
    assert [w.code for w in out.warnings] == ["queue_exceeds_ttft"]


def test_another_negative_latency_is_a_fault_with_a_name():
    out = read(worker_span(time_in_queue=-0.25))
    assert out.envelopes[0].queue_ns is None
    assert [w.code for w in out.warnings] == ["negative_duration"]


@pytest.mark.parametrize(("begin_ms", "done_ms", "placed"), [(1010, 1040, 1), (1040, 1010, 0), (1190, 1900, 0)])
def test_transfer_events_are_a_handoff_only_where_they_can_be_true(begin_ms, done_ms, placed):
    events = [
        SpanEvent(begin_ms * MS, "kv_cache_transfer_start", {}),
        SpanEvent(done_ms * MS, "kv_cache_transfer_end", {}),
    ]
    assert len(read(worker_span(events=events)).activities) == placed


def test_a_transfer_time_without_a_stamp_is_evidence():
    out = read(worker_span(kv_cache_transfer_time=0.03))
    assert [(e.name, e.value) for e in out.evidence] == [("kv_cache_transfer_time", 30 * MS)]
    assert not out.activities


def test_a_workers_id_counts_only_inside_its_process():
    assert [k.scope for k in TRTLLM.identify(worker_span()).keys] == ["trtllm:ctx-0"]
    assert TRTLLM.identify(worker_span(instance="")).keys == ()
    vllm = worker_span()
    vllm.attributes["gen_ai.request.id"] = "cmpl-abc-0"
    assert TRTLLM.identify(vllm) is None


def test_a_failed_proxy_span_is_a_failure_whose_stage_is_not_known():
    assert [f.stage for f in read(proxy_span(status=2)).failures] == [""]
    assert not read(proxy_span()).failures
