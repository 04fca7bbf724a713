"""Spans, records, logs and points as rows of the raw tables, and back.

Owns the mapping between pdtrace.model and schemas/sql/duckdb/0001_raw.sql. Does not touch a database.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pdtrace.model import Log, Point, Record, Span, SpanEvent, Value
from pdtrace.store.encoding import canonical, dumps, dumps_all, loads

Row = tuple[Any, ...]

_text, _int, _tiny, _hash = pa.string(), pa.int64(), pa.uint8(), pa.uint64()

SPAN = pa.schema(
    [
        ("trace_id", pa.uuid()),
        ("span_id", _text),
        ("parent_id", _text),
        ("name", _text),
        ("kind", _tiny),
        ("start_ns", _int),
        ("end_ns", _int),
        ("scope", _text),
        ("resource_id", _hash),
        ("attributes", _text),
        ("events", _text),
        ("links", _text),
        ("status", _tiny),
        ("status_message", _text),
        ("received_ns", _int),
    ]
)
RECORD = pa.schema(
    [
        ("kind", _text),
        ("key", _text),
        ("time_ns", _int),
        ("trace_id", _text),
        ("body", _text),
        ("received_ns", _int),
        ("source", _text),
    ]
)
LOG = pa.schema(
    [
        ("time_ns", _int),
        ("severity", _text),
        ("event_name", _text),
        ("scope", _text),
        ("trace_id", _text),
        ("span_id", _text),
        ("resource_id", _hash),
        ("attributes", _text),
        ("body", _text),
        ("received_ns", _int),
    ]
)
POINT = pa.schema(
    [
        ("name", _text),
        ("kind", _text),
        ("unit", _text),
        ("time_ns", _int),
        ("start_ns", _int),
        ("scope", _text),
        ("resource_id", _hash),
        ("attributes", _text),
        ("value_double", pa.float64()),
        ("value_int", _int),
        ("distribution", _text),
        ("temporality", _tiny),
        ("monotonic", pa.bool_()),
        ("received_ns", _int),
    ]
)
SOURCE_KEY = pa.schema(
    [("source", _text), ("kind", _text), ("scope", _text), ("value", _text), ("start_ns", _int), ("end_ns", _int)]
)


class Resources:
    """Resource ids of one batch. Batches share resource objects between spans, so each is encoded once."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}  #: resource_id -> JSON text of every resource seen
        self._ids: dict[int, int] = {}  #: id() of a mapping that the batch keeps alive -> resource_id

    def ids_of(self, resources: Sequence[Mapping[str, Value]]) -> list[int]:
        """``id_of`` each."""
        ids = list(map(id, resources))
        if not self._ids.keys() >= set(ids):
            for resource in resources:
                self.id_of(resource)
        return [self._ids[i] for i in ids]

    def id_of(self, resource: Mapping[str, Value]) -> int:
        """The id under which ``resource`` is kept: a hash of its content, the same in every process."""
        known = self._ids.get(id(resource))
        if known is not None:
            return known
        text = canonical(dict(resource))
        resource_id = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
        self.texts[resource_id] = text
        self._ids[id(resource)] = resource_id
        return resource_id


def span_columns(spans: Sequence[Span], resources: Resources) -> list[Sequence[Any]]:
    """The columns of ``spans``, in the order of SPAN."""
    return [
        [span.trace_id for span in spans],
        [span.span_id for span in spans],
        [span.parent_id for span in spans],
        [span.name for span in spans],
        [span.kind for span in spans],
        [span.start_ns for span in spans],
        [span.end_ns for span in spans],
        [span.scope for span in spans],
        resources.ids_of([span.resource for span in spans]),
        dumps_all([span.attributes for span in spans]),
        _sparse([span.events for span in spans], lambda events: [[e.time_ns, e.name, e.attributes] for e in events]),
        _sparse([span.links for span in spans], lambda links: links),
        [span.status for span in spans],
        [span.status_message for span in spans],
        [span.received_ns for span in spans],
    ]


def _sparse(lists: Sequence[list[Any]], plain: Callable[[list[Any]], list[Any]]) -> list[str]:
    """JSON text of lists most of which are empty."""
    texts = iter(dumps_all([plain(some) for some in lists if some]))
    return [next(texts) if some else "[]" for some in lists]


def span_of_row(row: Row, resource: Mapping[str, Value]) -> Span:
    """The span that ``span_columns`` was given."""
    (trace_id, span_id, parent_id, name, kind, start_ns, end_ns, scope, _, attributes, events, links, *rest) = row
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        kind=kind,
        start_ns=start_ns,
        end_ns=end_ns,
        scope=scope,
        resource=resource,
        attributes=loads(attributes),
        events=[SpanEvent(*e) for e in loads(events)] if events != "[]" else [],
        links=[(link[0], link[1]) for link in loads(links)] if links != "[]" else [],
        status=rest[0],
        status_message=rest[1],
        received_ns=rest[2],
    )


def record_row(record: Record) -> Row:
    """One row of ``records``, in the order of RECORD."""
    return (
        record.kind,
        record.key,
        record.time_ns,
        record.trace_id,
        dumps(record.body),
        record.received_ns,
        record.source,
    )


def record_of_row(row: Row) -> Record:
    """The record that ``record_row`` was given."""
    kind, key, time_ns, trace_id, body, received_ns, *_ = row
    return Record(kind, key, time_ns, loads(body), trace_id, received_ns)


def log_row(log: Log, resource_id: int) -> Row:
    """One row of ``logs``, in the order of LOG."""
    return (
        log.time_ns,
        log.severity,
        log.event_name,
        log.scope,
        log.trace_id,
        log.span_id,
        resource_id,
        dumps(log.attributes),
        dumps(log.body),
        log.received_ns,
    )


def point_row(point: Point, resource_id: int) -> Row:
    """One row of ``points``, in the order of POINT."""
    value = point.value
    return (
        point.name,
        point.kind,
        point.unit,
        point.time_ns,
        point.start_ns,
        point.scope,
        resource_id,
        dumps(point.attributes),
        value if isinstance(value, float) else None,
        value if isinstance(value, int) else None,
        None if point.distribution is None else dumps(point.distribution),
        point.temporality,
        point.monotonic,
        point.received_ns,
    )
