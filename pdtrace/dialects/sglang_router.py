"""The SGLang model gateway (smg, also called sglang-router): one `http_request` span per HTTP call.

Owns smg's span, its events and its strings. Does not own the Python mini_lb, which speaks SGLang's old form.

Source: sglang-router 0.3.2 (sgl-model-gateway/src/observability/{otel_trace,events}.rs, middleware.rs), seen in
captures. Every number is a string; `latency` is microseconds to the response headers, not to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from pdtrace.dialects.contract import SpansOnly, Tree, as_int, clock_of, seconds_to_ns, worker_of
from pdtrace.model import Activity, Before, Edge, Evidence, Failure, Identity, Key, Leg, Reading, Role, Span, TtftClaim

NAME = "smg"
_SENDING: Final = "Sending "
_RECEIVED: Final = "Received "
#: Calls that mean inference even if the router refused them before sending anything.
_INFERENCE: Final = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")

#: How many times nearer to the engine's end than to its first token headers must be to count as sent at the end.
_NEARER: Final = 5

_NOISE = Identity(NAME, "noise")
_INNER = Identity(NAME, "inner")


class _Dispatch(NamedTuple):
    """One attempt: when both legs were sent, to whom, and when the headers of all of them were in."""

    sent_ns: int
    received_ns: int | None
    urls: dict[Role, str]


class SmgRouterDialect(SpansOnly):
    """The router span of SGLang's gateway: route, attempts, chosen workers, status."""

    name = NAME
    blind_spots = (
        "What it did before it sent a request (read it, hold it, choose) is all shown as route.",
        "An attempt whose workers sent nothing: the next one's prefill is not known to be a recompute.",
        "A D that dies while it streams inside a 200: without D's own span the status is all there is.",
        "The router never says whether it streamed, why it chose a pair, or the prefix hit it expected.",
        "Its span does not end with the response (seen: 1.4 s for a 0.3 s answer).",
        "The spans of requests still open at the router's shutdown never come.",
        "Any failure of either leg is status 500: which of them failed only the engines' spans can tell.",
        "With --log-level warn it sends no spans at all and P and D start separate traces.",
        "A client's traceparent is ignored (0.3.2): the client's span stays in a trace of its own.",
    )

    def identify(self, span: Span) -> Identity | None:
        """A call that was sent on, or an inference call that never was, is a request; probes are noise."""
        if span.scope != NAME:
            return None
        if span.name != "http_request":
            return _INNER  # grpc_generate, grpc_execute
        if not any(event.name.startswith(_SENDING) for event in span.events) and not _is_inference(span):
            return _NOISE
        request_id = span.attributes.get("request_id")
        keys = (Key("request_id", request_id),) if isinstance(request_id, str) and request_id else ()
        return Identity(NAME, "edge", keys, edge="router")

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """The edge, its routing, its attempts, and legs for workers that sent nothing themselves."""
        for span in mine:
            if span.name == "http_request":
                _read_edge(span, tree, out)
            else:
                out.fact("model", span.attributes.get("model"))


def _is_inference(span: Span) -> bool:
    path = str(span.attributes.get("uri") or "").partition("?")[0]
    return span.attributes.get("method") == "POST" and path.endswith(_INFERENCE)


def _read_edge(span: Span, tree: Tree, out: Reading) -> None:
    clock = clock_of(span)
    http_status = as_int(span.attributes.get("status_code"))
    latency_us = as_int(span.attributes.get("latency"))
    latency_ns = latency_us * 1000 if latency_us is not None and latency_us >= 0 else None
    dispatches = _dispatches(span)
    streamed = _streamed(span, latency_ns, tree)
    # Only a whole answer ends with its headers; a stream's end the router does not know.
    ends_with_headers = latency_ns is not None and (streamed is False or (http_status or 0) >= 400)
    out.edges.append(
        Edge(
            kind="router",
            start_ns=span.start_ns,
            end_ns=span.start_ns + (latency_ns or 0) if ends_with_headers else span.end_ns,
            clock=clock,
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect=NAME,
            http_status=http_status,
            end_is_trusted=ends_with_headers,
        )
    )
    out.fact("request_id", span.attributes.get("request_id"))
    out.fact("http_status", http_status)
    out.fact("stream", streamed)
    if len(dispatches) > 1:
        out.fact("attempts", len(dispatches))
    if http_status is None and span.end_ns:
        # The server drops a request's future, and with it status and latency, only when the caller hung up.
        out.fact("client_cancelled_ns", span.end_ns)
    if latency_ns is not None and streamed:
        out.ttft_claims.append(TtftClaim("router", latency_ns, "from the router's receipt to the response headers"))
    if not dispatches:
        out.failures.append(
            Failure("route", "the router answered without sending the request to any worker", span.end_ns)
        )
    _read_dispatches(span, dispatches, clock, tree, out)
    _read_causality(dispatches, clock, out)
    received = bool(dispatches) and dispatches[-1].received_ns is not None
    if received and http_status is not None and http_status < 400 and not _engine_roots(tree, "decode", "aggregated"):
        # Every leg answered and no engine says more: the edge's status is the evidence there is.
        out.fact("answered", True)
    if http_status is not None and http_status >= 500 and dispatches:
        _read_silent_decode(span, tree, out)


def _dispatches(span: Span) -> list[_Dispatch]:
    """Each `Sending ...` event with the first `Received ...` after it."""
    found: list[_Dispatch] = []
    for event in sorted(span.events, key=lambda e: e.time_ns):
        if event.name.startswith(_SENDING):
            names: dict[Role, str] = {"prefill": "prefill_url", "decode": "decode_url", "aggregated": "url"}
            urls = {role: str(event.attributes[name]) for role, name in names.items() if event.attributes.get(name)}
            found.append(_Dispatch(event.time_ns, None, urls))
        elif event.name.startswith(_RECEIVED) and found and found[-1].received_ns is None:
            found[-1] = found[-1]._replace(received_ns=event.time_ns)
    return found


def _engine_roots(tree: Tree, *roles: Role) -> list[Span]:
    """SGLang's roots of these roles in this request, by start."""
    identities = ((span, tree.identity(span)) for span in tree.spans)
    return [span for span, identity in identities if identity.part == "worker" and identity.role in roles]


def _streamed(span: Span, latency_ns: int | None, tree: Tree) -> bool | None:
    """Whether the answer was streamed, from when its headers left; None where the telemetry cannot tell.

    The headers of a whole answer leave after it was finished, so a latency below the engine's own end-to-end time
    proves a stream, whatever the clocks say. Headers that left far nearer to the engine's end than to its first token
    mean a whole answer. Tokens that came in one bunch prove neither.
    """
    answering = _engine_roots(tree, "decode", "aggregated")
    if latency_ns is None or len(answering) != 1:
        return None
    root = answering[0]
    e2e_ns = seconds_to_ns(root.attributes.get("gen_ai.latency.e2e"))
    ttft_ns = seconds_to_ns(root.attributes.get("gen_ai.latency.time_to_first_token"))
    if e2e_ns is None or ttft_ns is None:
        return None
    if latency_ns < e2e_ns:
        return True
    after_end_ns = span.start_ns + latency_ns - (root.start_ns + e2e_ns)
    return False if _NEARER * abs(after_end_ns) <= e2e_ns - ttft_ns else None


def _read_dispatches(span: Span, dispatches: list[_Dispatch], clock: str, tree: Tree, out: Reading) -> None:
    for attempt, dispatch in enumerate(dispatches):
        if attempt == 0:  # between two attempts it backs off, chooses and waits: the container says no more
            out.activities.append(
                Activity(
                    stage="route",
                    start_ns=span.start_ns,
                    end_ns=dispatch.sent_ns,
                    worker=worker_of(span),
                    clock=clock,
                    span_id=span.span_id,
                    dialect=NAME,
                )
            )
        if {"prefill", "decode"} <= dispatch.urls.keys():
            out.fact("mode", "overlapped")
        for role, url in dispatch.urls.items():
            text = f"the {role} worker the router chose in attempt {attempt + 1}, by its address"
            out.evidence.append(Evidence("chosen_worker", url, "", text, span.span_id))
            if _engine_roots(tree, role):
                continue  # the worker speaks for itself
            if role != "aggregated":
                out.fact(f"{role}_worker", url)
            out.legs.append(
                Leg(
                    role=role,
                    worker=url,
                    start_ns=dispatch.sent_ns,
                    end_ns=dispatch.received_ns or span.end_ns,
                    clock=clock,
                    span_id=span.span_id,
                    dialect=NAME,
                    trace_id=span.trace_id,
                    attempt=attempt,
                    # The event says that the headers of ALL legs are in: P's own end is not known, D's is near.
                    end_is_trusted=role != "prefill" and dispatch.received_ns is not None,
                )
            )


def _read_causality(dispatches: list[_Dispatch], clock: str, out: Reading) -> None:
    """A worker has the request before the headers of all legs are in: the upper bound of its clock's offset.

    Uses the envelopes that the engines' dialect read before this one; without them there is no bound.
    """
    received_ns = dispatches[0].received_ns if len(dispatches) == 1 else None
    if received_ns is not None:
        for visit in out.envelopes:
            why = "a worker has the request before the router has its answer's headers"
            out.before.append(Before(visit.clock, visit.start_ns, clock, received_ns, why))


def _read_silent_decode(span: Span, tree: Tree, out: Reading) -> None:
    """By elimination: P finished and handed over, nothing reports an error, D sent no span, the router says 5xx."""
    prefills, decodes = _engine_roots(tree, "prefill"), _engine_roots(tree, "decode")
    handed_over = any(s.name == "prefill_transfer_kv_cache" and s.end_ns for s in tree.spans)
    if prefills and not decodes and handed_over and not any(s.status == 2 for s in tree.spans):
        text = "the router answered 5xx after P had finished and handed over; D sent no span"
        out.failures.append(Failure("decode", text, span.start_ns))
