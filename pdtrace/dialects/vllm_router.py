"""vllm-router 0.1.17: a SERVER span for each call of a client, and a CLIENT span for each call to P and to D.

Owns the router's attribute names. Does not trust the end of its spans, and knows of no first token.

Source of every name: capture pd_vllm_router (OTLP, router 0.1.17). Its CLIENT spans outlive the call by up to 74 s
and its SERVER span outlives the answer by up to 5 s, so a leg with an engine's span below it says only when it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pdtrace.dialects.contract import SpansOnly, Tree, as_int, clock_of, ms_to_ns
from pdtrace.model import Edge, Evidence, Identity, Key, Leg, Reading, Role, Span, TtftClaim

NAME = "vllm_router"
_SERVER, _CLIENT = 2, 3
_PHASES = ("prefill", "decode")


class VllmRouterDialect(SpansOnly):
    """vllm-router's spans: one edge, one leg to each worker."""

    name = NAME
    blind_spots = (
        "the first token: the router stamps only the response's headers",
        "cache prediction: the kv_aware policy puts none on its spans (and never predicted in the capture)",
        "when a leg ended: its CLIENT spans outlive the call",
    )

    def identify(self, span: Span) -> Identity | None:
        """SERVER is the edge of a request, CLIENT a leg to one worker; what is not a POST is a probe."""
        if span.scope != "vllm-router":
            return None
        method = span.attributes.get("http.request.method") or span.name.partition(" ")[0]
        if method != "POST":
            return Identity(NAME, "noise")
        if span.kind == _SERVER:
            request_id = span.attributes.get("request_id")
            keys = (Key("request_id", request_id),) if isinstance(request_id, str) and request_id else ()
            return Identity(NAME, "edge", keys, edge="router")
        if span.kind == _CLIENT:
            return Identity(NAME, "leg", role=_phase(span))
        return Identity(NAME, "inner")

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Edges and legs."""
        for span in mine:
            part = tree.identity(span).part
            if part == "edge":
                _read_edge(span, out)
            elif part == "leg":
                out.legs.append(_leg(span))


def _phase(span: Span) -> Role:
    phase = span.attributes.get("vllm.request_phase")
    return cast("Role", phase) if phase in _PHASES else ""


def _http_status(span: Span) -> int | None:
    status = as_int(span.attributes.get("http.response.status_code"))  # the router sends it as a string
    return status if status is not None and 100 <= status <= 599 else None


def _read_edge(span: Span, out: Reading) -> None:
    http_status = _http_status(span)
    out.edges.append(
        Edge(
            kind="router",
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect=NAME,
            http_status=http_status,
            end_is_trusted=False,
        )
    )
    request_id = span.attributes.get("request_id")
    out.fact("request_id", request_id if isinstance(request_id, str) else None)
    out.fact("http_status", http_status)
    headers_ns = ms_to_ns(span.attributes.get("latency_ms"))
    if headers_ns is not None and headers_ns >= 0:
        # Capture: 1 to 2 ms before the client's response headers, 0.1 to 8 s before its first chunk.
        out.ttft_claims.append(
            TtftClaim("router", headers_ns, "time to the response's headers, sent before D has a token: not a TTFT")
        )
    elif span.end_ns and not {"http.response.status_code", "latency_ms"} & span.attributes.keys():
        # The handler was dropped before it answered: the only cause in the router is that the caller went away.
        out.facts.setdefault("client_cancelled_ns", span.end_ns)
        text = "the router sent neither status nor headers: the caller hung up before an answer"
        out.evidence.append(Evidence("no_response", True, "", text, span.span_id))


def _leg(span: Span) -> Leg:
    attributes = span.attributes
    host, port = attributes.get("server.address"), attributes.get("server.port")
    http_status = _http_status(span)
    failed = span.status == 2 or (http_status is not None and http_status >= 400)
    return Leg(
        role=_phase(span),
        worker=f"{host}:{port}" if host and port else str(host or ""),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        clock=clock_of(span),
        span_id=span.span_id,
        dialect=NAME,
        trace_id=span.trace_id,
        http_status=http_status,
        failed=failed,
        error=(span.status_message or f"HTTP {http_status}") if failed else "",
        end_is_trusted=False,
    )
