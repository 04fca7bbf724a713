"""Everything no other dialect knows: OpenTelemetry's HTTP and gen_ai conventions, and spans that say nothing to us.

Owns the standard names, old and new. Comes last: it claims whatever is left, so a span is never lost.

Source: OpenTelemetry semantic conventions 384d661 (HTTP), semantic-conventions-genai 002c8a6 (gen_ai spans); the
deprecated gen_ai.usage.prompt_tokens, completion_tokens and gen_ai.latency.* that serving engines still send.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from pdtrace.dialects.contract import SpansOnly, Tree, as_int, clock_of, seconds_to_ns
from pdtrace.model import Edge, EdgeKind, Failure, Identity, Key, Leg, Reading, Span

NAME = "generic"
_SERVER: Final = 2
_CLIENT: Final = 3
#: Paths of inference calls, by their last part; a mount point in front of them does not matter.
_INFERENCE: Final = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
    "/generate_stream",
    ":generateContent",
    ":streamGenerateContent",
)
_PROBES: Final = ("/health", "/healthz", "/livez", "/readyz", "/liveness", "/readiness", "/ping", "/metrics")
_INFERENCE_OPERATIONS: Final = frozenset(("chat", "text_completion", "generate_content"))
_PATHS: Final = ("http.route", "url.path", "http.target", "url.full", "http.url")
_CANCELLED: Final = ("cancel", "client_disconnect", "clientdisconnect", "context canceled")
_TIMED_OUT: Final = ("timeout", "deadline")

_INNER = Identity(NAME, "inner")
_NOISE = Identity(NAME, "noise")


class GenericDialect(SpansOnly):
    """HTTP servers and clients of inference routes, gen_ai client spans, and anything else."""

    name = NAME
    blind_spots = (
        "Queues, prefill, transfer and decode: the standard conventions have no names for them.",
        "The first token of a server span: no standard attribute says it.",
    )

    def identify(self, span: Span) -> Identity | None:
        """Never None: what is no edge and no leg belongs to whatever its ancestors belong to."""
        if span.kind == _CLIENT:
            if span.attributes.get("gen_ai.operation.name") in _INFERENCE_OPERATIONS:
                return Identity(NAME, "edge", _ids(span), edge="client")
            if _path(span).endswith(_INFERENCE):
                # A call that begins a trace is the user's own; one inside a trace is somebody's call to a worker.
                return Identity(NAME, "leg") if span.parent_id else Identity(NAME, "edge", _ids(span), edge="client")
        elif span.kind == _SERVER:
            path = _path(span)
            if path.endswith(_INFERENCE) or any(key.startswith("gen_ai.") for key in span.attributes):
                return Identity(NAME, "edge", _ids(span), edge="frontend")
            if path.endswith(_PROBES):
                return _NOISE
        return _INNER

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Edges and legs where the tree says they are ones."""
        only_edge = len(mine) == len(tree.spans)
        for span in mine:
            identity = tree.identity(span)
            if identity.part == "inner":
                continue
            above = [tree.identity(ancestor).part for ancestor in tree.ancestors(span)]
            if identity.part == "edge" and not _is_called(above) and not _is_repeated(span, identity.edge, tree):
                _read_edge(span, identity.edge, out)
                if only_edge:
                    _read_success(span, out)
            elif identity.part == "leg" and not {"leg", "worker"} & set(above):
                if "edge" not in above and any(tree.identity(below).part == "edge" for below in tree.children(span)):
                    _read_edge(span, "client", out)  # the caller's own side of the request, not a call to a worker
                else:
                    _read_leg(span, out)


def _is_called(above: Sequence[str]) -> bool:
    """A server below a call that is itself part of a request is a worker's HTTP layer, not a request of its own."""
    return "leg" in above and "edge" in above[above.index("leg") :]


def _path(span: Span) -> str:
    """The route or path of an HTTP span, without its query; "" if nothing says one."""
    for name in _PATHS:
        value = span.attributes.get(name)
        if isinstance(value, str) and value:
            return value.partition("?")[0].rstrip("/")
    method, _, path = span.name.partition(" ")
    candidate = path if method.isupper() else span.name
    return candidate.partition("?")[0].rstrip("/") if candidate.startswith("/") else ""


def _ids(span: Span) -> tuple[Key, ...]:
    return tuple(Key("request_id", value) for value in _id_values(span))


def _id_values(span: Span) -> list[str]:
    """The ids that others may know the call by: the caller's, the header's, the answer's."""
    attributes = span.attributes
    names = ("gen_ai.request.id", "request_id", "http.request.header.x-request-id", "gen_ai.response.id")
    found: list[str] = []
    for name in names:
        value = attributes.get(name)
        values = value if isinstance(value, list) else [value]
        found.extend(one for one in values if isinstance(one, str) and one and one not in found)
    return found


def _is_repeated(span: Span, kind: EdgeKind, tree: Tree) -> bool:
    """A server below another server (or a client below a client) is the same call, seen deeper inside."""
    order = {"client": 0, "frontend": 1, "router": 2}
    mine = order.get(kind, 1)
    above = (tree.identity(ancestor) for ancestor in tree.ancestors(span))
    return any(identity.part == "edge" and order.get(identity.edge, 1) >= mine for identity in above)


def _read_edge(span: Span, kind: EdgeKind, out: Reading) -> None:
    attributes = span.attributes
    status = _http_status(span)
    out.edges.append(
        Edge(
            kind=kind,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect=NAME,
            first_token_ns=_first_token_ns(span),
            http_status=status,
        )
    )
    ids = _id_values(span)
    out.fact("request_id", ids[0] if ids else None)
    out.facts.setdefault("aliases", []).extend(ids)
    out.fact("http_status", status)
    out.fact("model", attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model"))
    out.fact("input_tokens", _tokens(span, "input_tokens", "prompt_tokens"))
    out.fact("output_tokens", _tokens(span, "output_tokens", "completion_tokens"))
    stream = attributes.get("gen_ai.request.stream")
    out.fact("stream", stream if isinstance(stream, bool) else None)
    reason = _finish_reason(attributes.get("gen_ai.response.finish_reasons"))
    out.fact("finish_reason", reason)
    if reason is not None and reason not in ("error", "abort", "not_finished"):
        out.fact("answered", True)
    _read_error(span, status, out)


def _read_success(span: Span, out: Reading) -> None:
    """Where nobody but HTTP speaks, an ended server span with a success status is all the evidence of an answer."""
    status = _http_status(span)
    if span.kind == _SERVER and span.end_ns and span.status != 2 and status is not None and status < 400:
        out.fact("answered", True)


def _http_status(span: Span) -> int | None:
    attributes = span.attributes
    return as_int(attributes.get("http.response.status_code", attributes.get("http.status_code")))


def _first_token_ns(span: Span) -> int | None:
    """First content chunk as the caller saw it, else the server's own time to first token; -1 means missing."""
    for name in ("gen_ai.response.time_to_first_chunk", "gen_ai.latency.time_to_first_token"):
        seconds_ns = seconds_to_ns(span.attributes.get(name))
        if seconds_ns is not None and seconds_ns >= 0:
            return span.start_ns + seconds_ns
    return None


def _tokens(span: Span, new_name: str, old_name: str) -> int | None:
    attributes = span.attributes
    count = as_int(attributes.get(f"gen_ai.usage.{new_name}", attributes.get(f"gen_ai.usage.{old_name}")))
    return count if count is not None and count >= 0 else None


def _finish_reason(raw: object) -> str | None:
    """The first finish reason, from a list (the convention) or JSON text (older engines)."""
    if isinstance(raw, str):
        try:
            return _finish_reason(json.loads(raw) if raw.startswith("[") else [raw])
        except ValueError:
            return raw
    first = raw[0] if isinstance(raw, list) and raw else None
    return first if isinstance(first, str) and first else None


def _read_error(span: Span, status: int | None, out: Reading) -> None:
    """Only an error that no HTTP status explains needs words; a number as error.type repeats the status."""
    kind = str(span.attributes.get("error.type") or "")
    text = span.status_message or ("" if kind.isdigit() else kind)
    out.fact("error", text)
    lower = f"{kind} {span.status_message}".lower()
    if any(word in lower for word in _TIMED_OUT):
        out.fact("timed_out_ns", span.end_ns or None)
    elif any(word in lower for word in _CANCELLED):
        out.fact("client_cancelled_ns", span.end_ns or None)
    elif span.status == 2 and (status is None or status < 400):
        out.failures.append(Failure("", text or "the span ended with an error and gave no reason", span.end_ns))


def _read_leg(span: Span, out: Reading) -> None:
    attributes = span.attributes
    status = _http_status(span)
    host = attributes.get("server.address") or attributes.get("net.peer.name") or ""
    port = attributes.get("server.port") or attributes.get("net.peer.port")
    failed = span.status == 2 or (status is not None and status >= 400)
    text = span.status_message or (f"the call answered HTTP {status}" if status else "the call failed")
    out.legs.append(
        Leg(
            role="",
            worker=f"{host}:{port}" if host and port else str(host),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            dialect=NAME,
            trace_id=span.trace_id,
            http_status=status,
            failed=failed,
            error=text if failed else "",
        )
    )
