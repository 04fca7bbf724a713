"""An ExportTraceServiceRequest in protobuf to Spans, the fast way: ptars to Arrow, Arrow columns to Span objects.

Owns the flattening and the vectorised checks. The plain way with the same result is walk_spans.py; a test compares.
"""

from __future__ import annotations

from itertools import compress, repeat
from typing import Any, Final

import numpy as np
import ptars
import pyarrow as pa

from pdtrace.model import Span, SpanEvent
from pdtrace.otlp.columns import attribute_dicts, byte_lengths, hex_ids, repeated_texts, slices
from pdtrace.otlp.faults import INT64_MAX, Undecodable, cut_text, parent_or_root, shown, span_fault
from pdtrace.otlp.leaves import ProtobufLeaves
from pdtrace.otlp.wire import REQUESTS, STRICT

_DESCRIPTOR: Final = STRICT.descriptor(REQUESTS["traces"])
_HANDLER: Final[Any] = ptars.HandlerPool([_DESCRIPTOR.file]).get_for_message(_DESCRIPTOR)


def column_spans(body: bytes, leaves: ProtobufLeaves, *, received_ns: int, latest_ns: int) -> list[Span]:
    """Spans of ``body`` in order; what cannot be kept is in ``leaves.faults``.

    Raises:
        Undecodable: not a protobuf ExportTraceServiceRequest.
    """
    try:
        batch = _HANDLER.list_to_record_batch([body])
    except Exception as error:  # ptars raises plain exceptions of several types
        raise Undecodable(f"the body is not a protobuf ExportTraceServiceRequest: {shown(str(error))}") from error
    resource_column = batch.column(0).flatten()
    scope_lists = resource_column.field("scope_spans")
    scope_column = scope_lists.flatten()
    span_lists = scope_column.field("spans")
    columns = span_lists.flatten()
    resources = attribute_dicts(resource_column.field("resource").field("attributes"), leaves)
    scopes = _cut(scope_column.field("scope").field("name"), leaves, "a scope name")
    if len(columns) == 0:
        return []
    resource_of_scope = np.repeat(np.arange(len(resources)), scope_lists.value_lengths().to_numpy())
    scope_of_span = np.repeat(np.arange(len(scopes)), span_lists.value_lengths().to_numpy())
    return _spans(
        columns,
        leaves,
        [resources[i] for i in resource_of_scope[scope_of_span].tolist()],
        [scopes[i] for i in scope_of_span.tolist()],
        received_ns,
        latest_ns,
    )


def _cut(column: pa.Array, leaves: ProtobufLeaves, what: str) -> list[str]:
    texts = repeated_texts(column.fill_null("") if column.null_count else column)
    if byte_lengths(column).max(initial=0) > leaves.text_limit:
        return [cut_text(text, leaves.text_limit, leaves.faults, what) for text in texts]
    return texts


def _spans(
    columns: pa.StructArray,
    leaves: ProtobufLeaves,
    resources: list[dict[str, Any]],
    scopes: list[str],
    received_ns: int,
    latest_ns: int,
) -> list[Span]:
    names = _cut(columns.field("name"), leaves, "a span name")
    trace_ids = hex_ids(columns.field("trace_id"), 16)
    span_ids = hex_ids(columns.field("span_id"), 8)
    starts = columns.field("start_time_unix_nano").to_numpy()
    ends = columns.field("end_time_unix_nano").to_numpy()
    start_list, end_list = starts.tolist(), ends.tolist()
    keep = None
    if _any_suspect(columns, starts, ends, latest_ns):
        keep = []
        for name, trace_id, span_id, start_ns, end_ns in zip(
            names, trace_ids, span_ids, start_list, end_list, strict=True
        ):
            fault = span_fault(trace_id, span_id, start_ns, end_ns, latest_ns)
            keep.append(fault is None)
            if fault is not None:
                leaves.faults.add("span", fault, f"span {shown(name)}")
        if not any(keep):
            return []
        mask = pa.array(keep)
        columns = columns.filter(mask)
        names, trace_ids, span_ids, start_list, end_list, resources, scopes = (
            list(compress(column, keep))
            for column in (names, trace_ids, span_ids, start_list, end_list, resources, scopes)
        )
    parents = [
        parent if len(parent) == 16 and parent != "0000000000000000" else parent_or_root(parent, leaves.faults, name)
        for parent, name in zip(hex_ids(columns.field("parent_span_id"), 8), names, strict=True)
    ]
    status = columns.field("status")
    return list(
        map(
            Span,
            trace_ids,
            span_ids,
            parents,
            names,
            columns.field("kind").to_numpy().tolist(),
            start_list,
            end_list,
            scopes,
            resources,
            attribute_dicts(columns.field("attributes"), leaves),
            _events(columns.field("events"), leaves),
            _links(columns.field("links"), leaves),
            status.field("code").fill_null(0).to_numpy().tolist(),
            _cut(status.field("message"), leaves, "a status message"),
            repeat(received_ns),
        )
    )


def _any_suspect(columns: pa.StructArray, starts: Any, ends: Any, latest_ns: int) -> bool:
    """Whether some span may be faulty: cheap, vectorised and on the safe side."""
    for field, size in (("trace_id", 16), ("span_id", 8)):
        column = columns.field(field)
        if (byte_lengths(column) != size).any():
            return True
        first = int(np.frombuffer(column.buffers()[1], np.int32, 1, column.offset * 4)[0])
        words = np.frombuffer(column.buffers()[2], np.uint64, len(column) * size // 8, first).reshape(-1, size // 8)
        if not words.any(axis=1).all():
            return True
    return bool((starts == 0).any() or (starts > np.uint64(latest_ns)).any() or (ends > np.uint64(INT64_MAX)).any())


def _events(column: pa.ListArray, leaves: ProtobufLeaves) -> list[list[SpanEvent]]:
    rows = column.flatten()
    if len(rows) == 0:
        return [[] for _ in range(len(column))]
    times = rows.field("time_unix_nano").to_numpy()
    names = _cut(rows.field("name"), leaves, "an event name")
    attributes = attribute_dicts(rows.field("attributes"), leaves)
    # tuple.__new__ is what SpanEvent() ends in; called directly it stays in C for the whole column.
    rows_of_events = zip(times.tolist(), names, attributes, strict=True)
    events: list[SpanEvent] = list(map(tuple.__new__, repeat(SpanEvent), rows_of_events))
    counts = column.value_lengths().to_numpy().tolist()
    if not (times > np.uint64(INT64_MAX)).any():
        return list(slices(events, counts))
    for event in events:
        if event.time_ns > INT64_MAX:
            leaves.faults.add("event", "event time must be Unix nanoseconds below 2**63", f"event {shown(event.name)}")
    return [[event for event in some if event.time_ns <= INT64_MAX] for some in slices(events, counts)]


def _links(column: pa.ListArray, leaves: ProtobufLeaves) -> list[list[tuple[str, str]]]:
    rows = column.flatten()
    if len(rows) == 0:
        return [[] for _ in range(len(column))]
    trace_ids, span_ids = hex_ids(rows.field("trace_id"), 16), hex_ids(rows.field("span_id"), 8)
    some_are_bad = False
    for trace_id, span_id in zip(trace_ids, span_ids, strict=True):
        if len(trace_id) != 32 or len(span_id) != 16 or not trace_id.strip("0") or not span_id.strip("0"):
            some_are_bad = True
            leaves.faults.add("link", "a link needs a trace id of 16 bytes and a span id of 8, not all zeros")
    links = list(slices(list(zip(trace_ids, span_ids, strict=True)), column.value_lengths().to_numpy().tolist()))
    if not some_are_bad:
        return links
    return [
        [(t, s) for t, s in some if len(t) == 32 and len(s) == 16 and t.strip("0") and s.strip("0")] for some in links
    ]
