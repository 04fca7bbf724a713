"""An ExportTraceServiceRequest, in any encoding whose fields Leaves can read, to Spans: the plain, slower way.

Owns the walk over resource, scope and span. Does not parse bytes; the fast way for protobuf is columns_spans.py.
"""

from __future__ import annotations

from typing import Any

from pdtrace.model import Span, SpanEvent
from pdtrace.otlp.faults import INT64_MAX, BadField, parent_or_root, shown, span_fault
from pdtrace.otlp.leaves import Leaves


def walk_spans(request: Any, leaves: Leaves, *, received_ns: int, latest_ns: int) -> list[Span]:
    """Spans of ``request`` in order; what cannot be kept is in ``leaves.faults``."""
    spans: list[Span] = []
    for resource_spans in request.resource_spans or ():
        resource = leaves.attributes(resource_spans.resource.attributes) if resource_spans.resource else {}
        for scope_spans in resource_spans.scope_spans or ():
            scope = leaves.text(scope_spans.scope.name, "a scope name") if scope_spans.scope else ""
            for raw in scope_spans.spans or ():
                try:
                    span = _span(raw, leaves, latest_ns)
                except BadField as fault:
                    leaves.faults.add("span", str(fault), f"span {raw.name or ''}")
                    continue
                if span is not None:
                    span.scope = scope
                    span.resource = resource
                    span.received_ns = received_ns
                    spans.append(span)
    return spans


def _span(raw: Any, leaves: Leaves, latest_ns: int) -> Span | None:
    name = leaves.text(raw.name, "a span name")
    trace_id, span_id = leaves.hex_id(raw.trace_id), leaves.hex_id(raw.span_id)
    start_ns, end_ns = leaves.integer(raw.start_time_unix_nano), leaves.integer(raw.end_time_unix_nano)
    fault = span_fault(trace_id, span_id, start_ns, end_ns, latest_ns)
    if fault is not None:
        leaves.faults.add("span", fault, f"span {shown(name)}")
        return None
    return Span(
        trace_id,
        span_id,
        parent_or_root(leaves.hex_id(raw.parent_span_id), leaves.faults, shown(name)),
        name,
        leaves.enum(raw.kind, "SPAN_KIND_"),
        start_ns,
        end_ns,
        "",
        {},
        leaves.attributes(raw.attributes or ()),
        [event for event in (_event(e, leaves) for e in raw.events or ()) if event is not None],
        [link for link in (_link(k, leaves) for k in raw.links or ()) if link is not None],
        leaves.enum(raw.status.code, "STATUS_CODE_") if raw.status else 0,
        leaves.text(raw.status.message, "a status message") if raw.status else "",
    )


def _event(raw: Any, leaves: Leaves) -> SpanEvent | None:
    time_ns = leaves.integer(raw.time_unix_nano)
    name = leaves.text(raw.name, "an event name")
    if not 0 <= time_ns <= INT64_MAX:
        leaves.faults.add("event", "event time must be Unix nanoseconds below 2**63", f"event {shown(name)}")
        return None
    return SpanEvent(time_ns, name, leaves.attributes(raw.attributes or ()))


def _link(raw: Any, leaves: Leaves) -> tuple[str, str] | None:
    trace_id, span_id = leaves.hex_id(raw.trace_id), leaves.hex_id(raw.span_id)
    if len(trace_id) == 32 and len(span_id) == 16 and trace_id.strip("0") and span_id.strip("0"):
        return (trace_id, span_id)
    leaves.faults.add("link", "a link needs a trace id of 16 bytes and a span id of 8, not all zeros")
    return None
