"""The native telemetry contract: `pdtrace.request` and `pdtrace.<stage>` spans.

Owns the names of that contract (schemas/registry lists them with types and units). Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pdtrace.dialects.contract import SpansOnly, Tree, as_int, clock_of, worker_of
from pdtrace.model import Activity, Edge, Evidence, Failure, Identity, Key, Reading, Role, Span, Value

_STAGE_OF_SPAN: Final[dict[str, str]] = {
    f"pdtrace.{stage}": stage
    for stage in (
        "route",
        "router_queue",
        "prefill_queue",
        "bootstrap",
        "prefill",
        "handoff",
        "decode_queue",
        "recompute",
        "first_token",
        "prefill_opaque",
        "decode_opaque",
        "decode",
        "kv_hold",
    )
}
_TELLING: Final = frozenset((*_STAGE_OF_SPAN, "pdtrace.request"))
_PREFILL_SIDE: Final = frozenset(("prefill_queue", "bootstrap", "prefill", "prefill_opaque", "kv_hold"))
_DECODE_SIDE: Final = frozenset(("decode_queue", "recompute", "first_token", "decode_opaque", "decode"))
_ROLES: Final[dict[str, Role]] = {"prefill": "prefill", "decode": "decode", "aggregated": "aggregated"}
_ROLE_OF_STAGE: Final[dict[str, Role]] = {
    **dict.fromkeys(_PREFILL_SIDE, "prefill"),
    **dict.fromkeys(_DECODE_SIDE, "decode"),
}
_CACHE_TIERS: Final = tuple(f"pdtrace.cached_tokens.{tier}" for tier in ("device", "host", "disk", "external"))
_NAMES: Final = (("request_id", "pdtrace.request.id"), ("model", "gen_ai.request.model"))
_ERROR: Final = 2  # OTLP status code
_HANDOFF_MODES: Final = frozenset(("sequential", "overlapped", "internal"))
_FAILED_RESULTS: Final = frozenset(("expired", "transport_error", "abandoned"))


class NativeDialect(SpansOnly):
    """What pdtrace's own instrumentation emits, and any engine may emit to be understood without a dialect."""

    name = "native"
    blind_spots: tuple[str, ...] = ()

    def identify(self, span: Span) -> Identity | None:
        """A request span is an edge; a stage span is a stage, tied by ``pdtrace.request.id`` if it has one."""
        if not span.name.startswith("pdtrace."):
            return None
        request_id = span.attributes.get("pdtrace.request.id")
        keys = (Key("request_id", str(request_id)),) if request_id else ()
        if span.name == "pdtrace.request":
            if span.kind == 3:
                return Identity(self.name, "edge", keys, edge="client")
            kind = _attribute(span, "pdtrace.worker.role")
            return Identity(self.name, "edge", keys, edge="router" if kind == "router" else "frontend")
        stage = _STAGE_OF_SPAN.get(span.name)
        if stage is None:
            return Identity(self.name, "inner", keys)
        return Identity(self.name, "stage", keys, role=_role(span, stage))

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Request spans give the edge and its facts, stage spans one activity each."""
        answers: list[tuple[Span, str, int]] = []
        cached: dict[int, int] = {}
        last_attempt = 0
        for span in mine:
            stage = _STAGE_OF_SPAN.get(span.name)
            if stage is not None:
                attempt = _read_stage(span, stage, out, cached)
                if attempt > last_attempt:
                    last_attempt = attempt
                if stage in ("first_token", "decode"):
                    answers.append((span, stage, attempt))
            elif span.name == "pdtrace.request":
                _read_request(span, tree, out)
        _read_names([span for span in mine if span.name in _TELLING], out)
        if answers:
            _read_first_token(answers, last_attempt, out)
        if cached:
            out.fact("cached_tokens", cached[max(cached)])


def _attribute(span: Span, name: str) -> Value:
    """A resource attribute that is also accepted on the span, which wins."""
    value = span.attributes.get(name)
    return span.resource.get(name) if value is None else value


def _role(span: Span, stage: str) -> Role:
    return _ROLES.get(str(_attribute(span, "pdtrace.worker.role") or "")) or _ROLE_OF_STAGE.get(stage, "")


def _read_request(span: Span, tree: Tree, out: Reading) -> None:
    attributes = span.attributes
    first_token_ns = as_int(attributes.get("pdtrace.first_token_ns"))
    out.edges.append(
        Edge(
            kind=tree.identity(span).edge,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect="native",
            first_token_ns=first_token_ns,
            http_status=as_int(attributes.get("http.response.status_code")),
        )
    )
    out.fact("input_tokens", as_int(attributes.get("gen_ai.usage.input_tokens")))
    out.fact("output_tokens", as_int(attributes.get("gen_ai.usage.output_tokens")))
    out.fact("outcome", attributes.get("pdtrace.outcome"))
    out.fact("error", attributes.get("pdtrace.error"))
    times = attributes.get("pdtrace.token_times_ns")
    if isinstance(times, list):
        out.fact("token_times", [span.start_ns + at for at in times if isinstance(at, int)])
    planned_ns = as_int(attributes.get("pdtrace.scheduled_start_ns"))
    if planned_ns is not None:
        out.evidence.append(
            Evidence(
                "late_start",
                span.start_ns - planned_ns,
                "ns",
                "how much later than planned an open-loop client sent the request; outside the window",
                span.span_id,
            )
        )
    if span.status == _ERROR:
        out.failures.append(Failure("", str(attributes.get("pdtrace.error") or span.status_message), span.end_ns))


def _read_stage(span: Span, stage: str, out: Reading, cached: dict[int, int]) -> int:
    """Append the activity of one stage span and what it says of the whole request; return its attempt.

    What a prefill found cached goes into ``cached`` by attempt: the last attempt's P is the one that counts.
    """
    attributes = span.attributes
    own = attributes.get
    worker, role = worker_of(span), _role(span, stage)
    attempt = as_int(own("pdtrace.attempt")) or 0
    result = own("pdtrace.handoff.result")
    failed = span.status == _ERROR or result in _FAILED_RESULTS
    rank = own("pdtrace.handoff.rank")
    out.activities.append(
        Activity(
            stage,
            span.start_ns,
            span.end_ns,
            worker,
            role,
            attempt,
            clock_of(span),
            span.span_id,
            "native",
            "" if rank is None else str(rank),
            "",
            _side(attributes, worker) if stage == "handoff" else "",
            failed,
            False,
            as_int(_attribute(span, "pdtrace.worker.gpus")),
            {k: v for k, v in attributes.items() if k[:8] == "pdtrace." and k != "pdtrace.request.id"},
        )
    )
    if failed:
        text = span.status_message or str(own("pdtrace.error") or result or f"{stage} failed")
        out.failures.append(Failure(_failed_stage(stage, role), text, span.end_ns, worker, attempt))
    if stage in ("prefill", "recompute"):
        tokens = _read_prompt_work(span, role, out)
        if tokens is not None:
            cached.setdefault(attempt, tokens)
    elif stage == "handoff":
        mode = own("pdtrace.handoff.mode")
        if mode in _HANDOFF_MODES:
            out.fact("mode", mode)
    elif stage == "decode" and span.end_ns and not failed:
        out.facts["answered"] = True
    return attempt


def _read_names(mine: Sequence[Span], out: Reading) -> None:
    """What the request, its model and its run are called: every span may say so, the first that does is believed."""
    for fact, name in _NAMES:
        for span in mine:
            if fact in out.facts:
                break
            out.fact(fact, span.attributes.get(name))
    for span in mine:
        run = _attribute(span, "pdtrace.run")
        if run is not None:
            out.fact("run", run)


def _read_first_token(answers: Sequence[tuple[Span, str, int]], last: int, out: Reading) -> None:
    """D's first token that a user can have seen: the end of first_token, else the start of decode.

    A first token of an attempt that was thrown away never left the router, unless that attempt went on to decode.
    """
    seen: dict[int, Span] = {}
    decoding: dict[int, Span] = {}
    for span, stage, attempt in answers:
        if stage == "first_token" and span.end_ns and span.status != _ERROR:
            seen.setdefault(attempt, span)
        elif stage == "decode":
            decoding.setdefault(attempt, span)
    tokens = [(span.end_ns, span) for attempt, span in seen.items() if attempt == last or attempt in decoding]
    tokens += [(span.start_ns, span) for attempt, span in decoding.items() if attempt not in seen]
    if tokens:
        at_ns, span = min(tokens, key=lambda token: token[0])
        out.fact("first_token_ns", at_ns)
        out.fact("first_token_clock", clock_of(span))


def _read_prompt_work(span: Span, role: Role, out: Reading) -> int | None:
    """Tokens that P (or an aggregated worker) really found cached; D's own prompt work never proves a prefix hit."""
    attributes = span.attributes
    out.fact("input_tokens", as_int(attributes.get("pdtrace.prompt_tokens")))
    if role == "decode":
        return None
    cached = as_int(attributes.get("pdtrace.cached_tokens"))
    if cached is None:
        tiers = [tokens for tier in _CACHE_TIERS if (tokens := as_int(attributes.get(tier))) is not None]
        cached = sum(tiers) if tiers else None
    return cached


def _side(attributes: dict[str, Value], worker: str) -> Literal["", "send", "receive"]:
    """Whose stamps a handoff span carries: the sender's, the receiver's, or unknown."""
    source, destination = attributes.get("pdtrace.handoff.src"), attributes.get("pdtrace.handoff.dst")
    if worker and worker == destination and worker != source:
        return "receive"
    return "send" if worker and worker == source else ""


def _failed_stage(stage: str, role: Role) -> Literal["", "route", "prefill", "handoff", "decode"]:
    """Where it failed; an aggregated worker that reports nothing finer may have been prefilling or decoding."""
    if stage == "prefill_opaque" and role == "aggregated":
        return ""
    if stage in ("route", "router_queue"):
        return "route"
    if stage == "handoff":
        return "handoff"
    return "prefill" if stage in _PREFILL_SIDE else "decode"
