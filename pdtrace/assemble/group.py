"""Which spans are one request: fragments to groups, across traces.

Owns the order of the joins of definitions section 1: the subtree of one edge span (units.py), then an engine request
id, a room or a context id inside a time window, and the bare trace id only when exactly one candidate is left
(joins.py). Does not read what the spans say (dialects do that) and asks only for their identities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdtrace.assemble.joins import join_by_key, join_by_trace
from pdtrace.assemble.units import Unit, units_by_parent, units_of_records, whole_traces
from pdtrace.dialects.contract import BY_START
from pdtrace.model import Identity, Key, Record, RequestWarning, Span, SpanKey


@dataclass(slots=True)
class Group:
    """The fragments of one request."""

    spans: list[Span]
    records: list[Record] = field(default_factory=list)
    stitched_by: str = "none"
    warnings: list[RequestWarning] = field(default_factory=list)


def group(
    spans: Sequence[Span],
    identities: dict[SpanKey, Identity],
    records: Sequence[tuple[Record, tuple[Key, ...]]] = (),
) -> list[Group]:
    """Split ``spans`` (unique keys, noise already removed) and ``records`` into requests.

    The answer does not depend on the order of the arguments.
    """
    spans = sorted(spans, key=BY_START)
    units, others = whole_traces(spans, identities)
    units += units_by_parent(others, identities)
    units += units_of_records(records)
    join_by_key(units)
    join_by_trace(units)
    return _groups(units)


def _groups(units: list[Unit]) -> list[Group]:
    return [
        Group(spans=unit.spans, records=unit.records, stitched_by=unit.join, warnings=unit.notes)
        for unit in units
        if unit.joined_into is None and unit.makes_request
    ]
