"""vLLM 0.32: the `llm_request` span an engine exports when a request ends, and the spans of its start-up.

Owns vLLM's attribute names. Does not place queue and prefill inside the span and does not pair P with D (assemble).

Source of every name: captures vllm-0.32 (OTLP, real engines), vllm/tracing and vllm/v1/engine/output_processor.py.
Start is the arrival and TTFT and e2e are wall clock; the other durations are the engine's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from pdtrace.dialects.contract import SpansOnly, Tree, as_int, clock_of, seconds_to_ns, worker_of
from pdtrace.dialects.vllm_request_id import callers_id, keys_of, request_id_of_span, was_rewritten
from pdtrace.model import Envelope, Evidence, Failure, Identity, Reading, Role, Span, Value

NAME = "vllm"
_ROLES = ("prefill", "decode", "aggregated")
_INFERENCE_TAIL_NS = 1_000_000  # a span ends 0.3 to 1.5 ms after its e2e: a token later than that is a clock fault


class VllmDialect(SpansOnly):
    """vLLM's spans. KV transfer, cached tokens and the scheduler's admission are in none of them."""

    name = NAME
    blind_spots = (
        "the KV transfer of one request: it is inside D's queue time (aggregate NIXL metrics exist)",
        "cached tokens (LMCache or the client's usage may know them)",
        "aborted and unsampled requests: vLLM exports no span for them",
        "a prompt that D computed again after a failed load: it is inside D's time in the model, shown as first_token",
        "attempts: two visits to P by one request look alike, so a retry's prefill is not told from the first",
        "which worker is P: only service.name, a router's leg, or one output token and the order tell",
    )

    def identify(self, span: Span) -> Identity | None:
        """`llm_request` with a string id is an engine's visit; spans of the loading decorator are noise."""
        if span.name == "llm_request":
            raw_id = span.attributes.get("gen_ai.request.id")
            if isinstance(raw_id, str) and raw_id:
                return Identity(NAME, "worker", keys_of(request_id_of_span(raw_id)), _declared_role(span.resource))
            if raw_id is None and span.scope.startswith("vllm"):
                return Identity(NAME, "worker", (), _declared_role(span.resource))
            return None  # an integer id is TensorRT-LLM's
        if span.scope.startswith("vllm."):
            # Start-up (`Overall Loading`, `Load weights`, ...) comes from a decorator that stamps code.function.
            return Identity(NAME, "noise" if "code.function" in span.attributes else "inner")
        return None

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """One envelope for each visit; ids as facts."""
        visits = [span for span in mine if tree.identity(span).part == "worker"]
        for span in visits:
            _read_names(span, tree, out)
            envelope = _envelope(span, visits)
            if _never_scheduled(span):
                _read_load_failure(span, envelope, tree, out)
            out.envelopes.append(envelope)


def _envelope(span: Span, visits: Sequence[Span]) -> Envelope:
    attributes = span.attributes
    durations = {
        name: seconds_to_ns(attributes.get(f"gen_ai.latency.{name}"))
        for name in (
            "time_to_first_token",
            "e2e",
            "time_in_queue",
            "time_in_model_prefill",
            "time_in_model_decode",
            "time_in_model_inference",
        )
    }
    void = any(duration is not None and duration < 0 for duration in durations.values())
    return Envelope(
        role=_declared_role(span.resource),
        worker=worker_of(span),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        clock=clock_of(span),
        span_id=span.span_id,
        dialect=NAME,
        trace_id=span.trace_id,
        first_token_ns=_first_token_ns(span, durations["time_to_first_token"]),
        queue_ns=None if void else durations["time_in_queue"],
        prefill_ns=None if void else durations["time_in_model_prefill"],
        void_durations=void,
        role_hint=_role_hint(span, visits),
        input_tokens=as_int(attributes.get("gen_ai.usage.prompt_tokens")),
        output_tokens=as_int(attributes.get("gen_ai.usage.completion_tokens")),
        gpus=as_int(span.resource.get("pdtrace.worker.gpus")),
    )


def _first_token_ns(span: Span, ttft_ns: int | None) -> int | None:
    """Arrival + TTFT. A request that ended without a token reports its e2e as TTFT: that is no first token."""
    if ttft_ns is None or ttft_ns < 0 or as_int(span.attributes.get("gen_ai.usage.completion_tokens")) == 0:
        return None
    first_token_ns = span.start_ns + ttft_ns
    return None if span.end_ns and first_token_ns > span.end_ns + _INFERENCE_TAIL_NS else first_token_ns


def _declared_role(resource: Mapping[str, Value]) -> Role:
    role = resource.get("pdtrace.worker.role")
    return cast("Role", role) if role in _ROLES else ""


def _role_hint(span: Span, visits: Sequence[Span]) -> Role:
    """What the service is called; failing that, a visit capped at one token beside one that is not."""
    service = str(span.resource.get("service.name") or "").lower()
    named = [role for role in ("prefill", "decode") if role in service]
    if len(named) == 1:
        return cast("Role", named[0])
    caps = {as_int(visit.attributes.get("gen_ai.request.max_tokens")) for visit in visits}
    if len(caps) > 1 and 1 in caps:  # one visit alone, or n answers of one token, say nothing about P and D
        return "prefill" if as_int(span.attributes.get("gen_ai.request.max_tokens")) == 1 else "decode"
    return ""


def _read_names(span: Span, tree: Tree, out: Reading) -> None:
    raw_id = span.attributes.get("gen_ai.request.id")
    if not isinstance(raw_id, str):
        return
    request_id = request_id_of_span(raw_id)
    # A router that rewrote the id knows the caller's own: its edge names the request.
    if not (was_rewritten(request_id) and any(tree.identity(s).part == "edge" for s in tree.spans)):
        out.fact("request_id", request_id)
    aliases = out.facts.setdefault("aliases", [])
    others = [name for name in (request_id, raw_id, callers_id(request_id)) if name != out.facts.get("request_id")]
    aliases.extend(name for name in dict.fromkeys(others) if name and name not in aliases)
    out.fact("model", span.attributes.get("gen_ai.response.model") or span.attributes.get("gen_ai.request.model"))


def _never_scheduled(span: Span) -> bool:
    """The mark of a KV load that failed: no token, and a queue time of minus the machine's uptime (quirk 1)."""
    queue_ns = seconds_to_ns(span.attributes.get("gen_ai.latency.time_in_queue"))
    tokens = as_int(span.attributes.get("gen_ai.usage.completion_tokens"))
    return tokens == 0 and queue_ns is not None and queue_ns < 0


def _read_load_failure(span: Span, envelope: Envelope, tree: Tree, out: Reading) -> None:
    queue_s = span.attributes.get("gen_ai.latency.time_in_queue")
    roles = [envelope.role, *(tree.identity(above).role for above in tree.ancestors(span)), envelope.role_hint]
    on_prefill = next((role for role in roles if role), "") == "prefill"
    what = "request ended" if on_prefill else "KV load failed"
    text = (
        f"{what} on {envelope.worker} before it was scheduled: no token, and its queue time of {queue_s} s is a stamp "
        "that was never set; the caller got HTTP 500, or 200 and an error inside the stream"
    )
    envelope.failed, envelope.error, envelope.finished = True, text, False
    out.failures.append(Failure("prefill" if on_prefill else "handoff", text, span.end_ns, envelope.worker))
    out.evidence.append(
        Evidence("void_time_in_queue", queue_s, "s", "reported, impossible, and used for nothing", span.span_id)
    )
