"""llm-d: the endpoint picker (EPP) in front and the P/D sidecar proxy beside each decode worker.

Owns llm-d's span and attribute names. The engines below are vLLM's or SGLang's dialect, and their HTTP client spans
the generic one's.

Source: llm-d-inference-scheduler (now llm-d-router) 520af47, llm-d-kv-cache 7be76e1 (read, not captured); the short
span names (forward_request, prefill, decode, ...) are those of a published trace of 2026-08. All `*_ms` attributes are
Go's `.Milliseconds()`: truncated to whole milliseconds, so they are evidence and never a section.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdtrace.dialects.contract import SpansOnly, Tree, as_float, as_int, clock_of, ms_to_ns, worker_of
from pdtrace.model import Activity, Edge, Evidence, Failure, Identity, Key, Leg, Reading, Role, Span, TtftClaim

NAME = "llm-d"
_PROXY: Final = "llm_d.pd_proxy."
_GATEWAY: Final = "gateway.request"
_ORCHESTRATION: Final = "gateway.request_orchestration"
_SHORT_NAMES: Final = frozenset(("forward_request", "prefill", "decode", "chunked_decode"))
_METHODS: Final = ("POST ", "GET ", "PUT ", "DELETE ", "HEAD ", "OPTIONS ")
#: Numbers of the router's decision: (attribute, unit, what it means).
_DECISION: Final = (
    ("llm_d.scorer.score.max", "", "best prefix score over all candidates, not the chosen endpoint's"),
    ("llm_d.scorer.candidate_endpoints", "", "endpoints the prefix scorer looked at"),
    ("llm_d.kv_cache.block_hit_ratio", "", "blocks that ANY pod holds, contiguous or not: an upper bound of a hit"),
    ("llm_d.epp.profile_handler.decision", "", "one step of the disaggregation decision"),
    ("llm_d.epp.pd.reason", "", "why the request was or was not disaggregated"),
)
_DURATIONS: Final = (
    ("prefill.duration_ms", "the sidecar's call to P, whole milliseconds"),
    ("decode.duration_ms", "the sidecar's call to D to the end of the answer, whole milliseconds"),
    ("coordinator_overhead_ms", "the sidecar's own time between the calls, whole milliseconds"),
)


class LlmdDialect(SpansOnly):
    """llm-d's gateway, scheduler and sidecar spans."""

    name = NAME
    blind_spots = (
        "The first token: neither the gateway nor the sidecar stamps it (true_ttft_ms is the time to decode dispatch).",
        "KV transfer: it happens between the engines and is in no llm-d span.",
        "A fallback to decode-only leaves no attribute: only a failed prefill call and no decode span.",
        "The default sampler keeps one trace in ten, and the exporter is the console unless OTEL_TRACES_EXPORTER=otlp.",
        "A sidecar before llm-d-router#1667 does not hand its trace on: engines start traces of their own.",
    )

    def identify(self, span: Span) -> Identity | None:
        """By scope or by names only llm-d uses; the short names count only beside an llm_d attribute."""
        if not _is_mine(span):
            return None
        name = _short(span.name)
        if name == _GATEWAY:
            return Identity(NAME, "edge", _ids(span), edge="frontend")
        if name in ("prefill", "decode"):
            role: Role = "prefill" if name == "prefill" else "decode"
            return Identity(NAME, "leg", _ids(span), role=role)
        if name.startswith(_METHODS):
            path = name.partition(" ")[2]
            probe = path.endswith(("/health", "/healthz", "/metrics", "/readyz", "/livez", "/v1/models"))
            return Identity(NAME, "noise") if probe else Identity(NAME, "edge", edge="router")
        if name in ("request", "forward_request"):
            return Identity(NAME, "edge", _ids(span), edge="router")
        return Identity(NAME, "stage", _ids(span))

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Edges, the routing decision, the two legs, and what the sidecar claims."""
        legs: set[Role] = set()
        for span in mine:
            identity = tree.identity(span)
            if identity.part == "edge":
                _read_edge(span, tree, out)
            elif identity.part == "leg":
                legs.add(identity.role)
                _read_leg(span, identity.role, out)
            elif _short(span.name) == _ORCHESTRATION:
                _read_route(span, out)
            _read_facts(span, out)
        if legs == {"prefill", "decode"}:
            out.fact("mode", "sequential")


def _is_mine(span: Span) -> bool:
    name = span.name
    if span.scope.startswith("llm-d") or name.startswith(("llm_d.", "gateway.request")):
        return True
    return name in _SHORT_NAMES and any(key.startswith("llm_d.") for key in span.attributes)


def _short(name: str) -> str:
    return name.removeprefix(_PROXY)


def _ids(span: Span) -> tuple[Key, ...]:
    """The caller's id on scheduler spans; the sidecar's own uuid, which the engines see, on its legs."""
    ids = (span.attributes.get("gen_ai.request.id"), span.attributes.get(_PROXY + "request_id"))
    return tuple(Key("request_id", value) for value in ids if isinstance(value, str) and value)


def _proxy(span: Span, name: str) -> object:
    return span.attributes.get(_PROXY + name)


def _read_edge(span: Span, tree: Tree, out: Reading) -> None:
    # The sidecar has two SERVER spans for one call and may sit below the gateway: only the outermost of a kind counts.
    kind = tree.identity(span).edge
    if any(tree.identity(above).edge == kind for above in tree.ancestors(span)):
        inner_status = _http_status(span)
        if inner_status is not None:
            out.fact("http_status", inner_status)
    else:
        out.edges.append(
            Edge(
                kind=kind,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                clock=clock_of(span),
                span_id=span.span_id,
                trace_id=span.trace_id,
                dialect=NAME,
                http_status=_http_status(span),
            )
        )
    error = _proxy(span, "error")
    denied = _proxy(span, "denied_target")
    if denied:
        out.failures.append(Failure("route", f"the sidecar refused the prefill target {denied}", span.start_ns))
    elif error:
        out.failures.append(Failure("", str(error), span.end_ns, worker_of(span)))


def _http_status(span: Span) -> int | None:
    attributes = span.attributes
    return as_int(attributes.get("http.response.status_code", attributes.get("http.status_code")))


def _read_route(span: Span, out: Reading) -> None:
    out.fact("model", span.attributes.get("target_model"))
    out.activities.append(
        Activity(
            "route",
            span.start_ns,
            span.end_ns,
            worker=worker_of(span),
            clock=clock_of(span),
            span_id=span.span_id,
            dialect=NAME,
            failed=span.status == 2,
        )
    )
    if span.status == 2:
        text = span.status_message or "the scheduler found no endpoint"
        out.failures.append(Failure("route", text, span.end_ns, worker_of(span)))


def _read_leg(span: Span, role: Role, out: Reading) -> None:
    status = as_int(_proxy(span, f"{role}.status_code"))
    target = _proxy(span, "prefill_target") if role == "prefill" else _proxy(span, "decode.target")
    worker = str(target or "")
    failed = span.status == 2 or (status is not None and status >= 400)
    text = span.status_message or (f"the call answered HTTP {status}" if status else "the call failed")
    out.legs.append(
        Leg(
            role=role,
            worker=worker,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            dialect=NAME,
            trace_id=span.trace_id,
            http_status=status,
            failed=failed,
            error=text if failed else "",
            # The SGLang connector answers as soon as P's call is on its way.
            end_is_trusted=_proxy(span, "prefill.async") is not True,
        )
    )
    if failed:
        stage_failure = Failure("prefill", text, span.end_ns, worker)
        if role == "decode":
            stage_failure.stage = "decode"
        out.failures.append(stage_failure)
    for name, text in _DURATIONS:
        _keep(span, _PROXY + name, ms_to_ns(_proxy(span, name)), "ns", text, out)
    dispatched_ns = ms_to_ns(_proxy(span, "true_ttft_ms"))
    if dispatched_ns is not None and dispatched_ns >= 0:
        out.ttft_claims.append(TtftClaim("llmd_true_ttft", dispatched_ns, "time to decode dispatch"))


def _read_facts(span: Span, out: Reading) -> None:
    attributes = span.attributes
    for name in ("gen_ai.request.id", _PROXY + "request_id"):
        if isinstance(attributes.get(name), str) and attributes[name]:
            out.facts.setdefault("aliases", []).append(attributes[name])
    out.fact("request_id", attributes.get("gen_ai.request.id"))
    out.fact("model", attributes.get("gen_ai.request.model"))
    if _proxy(span, "decode.concurrent_with_prefill") is True or _proxy(span, "concurrent_pd") is True:
        out.fact("mode", "overlapped")
    if False in (_proxy(span, "disaggregation_used"), attributes.get("llm_d.epp.pd.disaggregation_used")):
        out.fact("mode", "prefill_on_decode")
    streaming = _proxy(span, "decode.streaming")
    out.fact("stream", streaming if isinstance(streaming, bool) else None)
    for name, unit, text in _DECISION:
        value = attributes.get(name)
        _keep(span, name, value if isinstance(value, str) else as_float(value), unit, text, out)


def _keep(span: Span, name: str, value: object, unit: str, text: str, out: Reading) -> None:
    if value is not None and value != "":
        out.evidence.append(Evidence(name, value, unit, text, span.span_id))
