"""TensorRT-LLM: the `llm_request` span of a context or generation worker, and the proxy's `disaggregated_request`.

Owns TensorRT-LLM's span and attribute names. Does not own /perf_metrics (trtllm_perf_metrics.py) nor place durations.

Source (read, not run): tensorrt_llm/executor/result.py@5f15841, llmapi/tracing.py@0fb7f75,
serve/openai_disagg_server.py. Every latency is in seconds and -1 when it is missing. A span is made when the request
ends and dated back by its e2e, so its stamps are late by the handling of the last response.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pdtrace.dialects.contract import Tree, as_float, as_int, clock_of, seconds_to_ns, worker_of
from pdtrace.dialects.trtllm_perf_metrics import KIND, keys_of_record, read_perf_metrics
from pdtrace.model import (
    Activity,
    Edge,
    Envelope,
    Evidence,
    Failure,
    Identity,
    Key,
    Log,
    Reading,
    Record,
    Role,
    Span,
)

NAME = "trtllm"


class TrtllmDialect:
    """TensorRT-LLM's spans and its /perf_metrics records."""

    name = NAME
    blind_spots = (
        "P and D of one request where the proxy sends no trace headers: their spans share no id",
        "the first token on the proxy's span: it ends when a stream is handed over, about when P is done",
        "the KV transfer outside /perf_metrics: it is inside D's queue time or its first step",
        "the wall clock of /perf_metrics: its stamps are on a steady clock",
    )

    def identify(self, span: Span) -> Identity | None:
        """`llm_request` with an integer id is a worker's visit, `disaggregated_request` the proxy's edge."""
        if span.name == "llm_request":
            raw_id = span.attributes.get("gen_ai.request.id")
            if isinstance(raw_id, int) and not isinstance(raw_id, bool):
                # The id is a worker's own count: without a process id, two workers' ids could not be told apart.
                instance = span.resource.get("service.instance.id")
                keys = (Key("request_id", str(raw_id), f"trtllm:{instance}"),) if instance else ()
                return Identity(NAME, "worker", keys, _role(span))
            if raw_id is None and span.scope.startswith("trt"):
                return Identity(NAME, "worker", (), _role(span))
            return None
        if span.name == "disaggregated_request":
            return Identity(NAME, "edge", edge="router")
        return Identity(NAME, "inner") if span.scope.startswith("trt.llm") else None

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """One edge for the proxy's span, one envelope for each worker's."""
        split = any(_role(span) == "prefill" for span in mine)
        for span in mine:
            part = tree.identity(span).part
            if part == "edge":
                _read_edge(span, out)
            elif part == "worker":
                _read_worker(span, split, out)

    def record_from_log(self, log: Log) -> Record | None:
        """TensorRT-LLM logs no request facts as OTLP logs."""
        return None

    def record_keys(self, record: Record) -> tuple[Key, ...] | None:
        """Keys of a /perf_metrics entry."""
        return keys_of_record(record) if record.kind == KIND else None

    def read_record(self, record: Record, out: Reading) -> None:
        """One /perf_metrics entry."""
        read_perf_metrics(record, out)


def _role(span: Span) -> Role:
    """A context worker answers with `not_finished`: the request goes on elsewhere."""
    return "prefill" if "not_finished" in _finish_reasons(span) else ""


def _finish_reasons(span: Span) -> list[str]:
    """The reasons, which come as a JSON string; a plain word or a list is accepted too."""
    raw = span.attributes.get("gen_ai.response.finish_reasons")
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError:
            return [raw] if isinstance(raw, str) else []
    return [str(reason) for reason in raw] if isinstance(raw, list) else [str(raw)] if raw is not None else []


def _read_edge(span: Span, out: Reading) -> None:
    out.edges.append(
        Edge(
            kind="router",
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect=NAME,
            end_is_trusted=False,
        )
    )
    if span.status == 2:
        out.failures.append(Failure("", span.status_message or "the proxy's span says ERROR", span.end_ns))


def _read_worker(span: Span, split: bool, out: Reading) -> None:
    attributes = span.attributes
    role = _role(span)
    ttft_ns = _latency_ns(span, "time_to_first_token", out)
    queue_ns = _latency_ns(span, "time_in_queue", out)
    has_e2e = _latency_ns(span, "e2e", out) is not None
    output_tokens = as_int(attributes.get("gen_ai.usage.completion_tokens"))
    start_ns = span.start_ns
    if not has_e2e and span.end_ns:
        # The exporter computes start = now - e2e: with e2e -1 the span starts one second after its own end.
        start_ns = min(start_ns, span.end_ns)
        ttft_ns = queue_ns = None
        out.warn("start_unknown", f"{worker_of(span)} reports no e2e, so when the request reached it is not known")
    prefill_ns = ttft_ns - queue_ns if ttft_ns is not None and queue_ns is not None else None
    if prefill_ns is not None and prefill_ns < 0:
        queue_ns = prefill_ns = None
        text = f"{worker_of(span)} reports more queue time than time to first token: neither is placed"
        out.warn("queue_exceeds_ttft", text)
    reasons = _finish_reasons(span)
    for reason, fact in (("cancelled", "client_cancelled_ns"), ("timeout", "timed_out_ns")):
        if reason in reasons:
            out.facts.setdefault(fact, span.end_ns)
    if role != "prefill" and reasons:
        out.fact("finish_reason", reasons[0])
    out.envelopes.append(
        Envelope(
            role=role,
            worker=worker_of(span),
            start_ns=start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            dialect=NAME,
            trace_id=span.trace_id,
            first_token_ns=start_ns + ttft_ns if ttft_ns is not None and output_tokens != 0 else None,
            queue_ns=queue_ns,
            prefill_ns=prefill_ns,
            role_hint="decode" if split and role != "prefill" else "",
            input_tokens=as_int(attributes.get("gen_ai.usage.prompt_tokens")),
            output_tokens=output_tokens,
            failed=span.status == 2,
            error=span.status_message if span.status == 2 else "",
            finished=span.status != 2 and not {"cancelled", "timeout"} & set(reasons),
            gpus=as_int(span.resource.get("pdtrace.worker.gpus")),
        )
    )
    _read_transfer(span, role, out)


def _latency_ns(span: Span, name: str, out: Reading) -> int | None:
    """A latency, or None for -1 (missing). Any other negative value is a fault and says so."""
    raw = span.attributes.get(f"gen_ai.latency.{name}")
    value_ns = seconds_to_ns(raw)
    if value_ns is None or value_ns >= 0:
        return value_ns
    if as_float(raw) != -1:
        out.warn("negative_duration", f"{worker_of(span)} reports {name} = {raw} s: not used")
    return None


def _read_transfer(span: Span, role: Role, out: Reading) -> None:
    """The transfer's events if they have stamps inside the span; its length alone is evidence."""
    stamps = {event.name: event.time_ns for event in span.events}
    begin_ns, done_ns = stamps.get("kv_cache_transfer_start"), stamps.get("kv_cache_transfer_end")
    if begin_ns is not None and done_ns is not None and span.start_ns <= begin_ns <= done_ns <= span.end_ns:
        out.activities.append(
            Activity(
                "handoff",
                begin_ns,
                done_ns,
                worker=worker_of(span),
                role=role,
                clock=clock_of(span),
                span_id=span.span_id,
                dialect=NAME,
                side="send" if role == "prefill" else "receive",
                detail={"backend": "trtllm"},
            )
        )
    transfer_ns = _latency_ns(span, "kv_cache_transfer_time", out)
    if transfer_ns is not None:
        text = "length of the KV transfer, without a stamp: it lies inside this worker's queue time or first step"
        out.evidence.append(Evidence("kv_cache_transfer_time", transfer_ns, "ns", text, span.span_id))
