"""Fragments that hold together by themselves: parent chains and records, the units that the joins work on.

Owns the first join of definitions section 1, the subtree of one edge span. Compares no two traces (joins.py does).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pdtrace.model import Identity, Key, Record, RequestWarning, Span, SpanKey

#: Two fragments with an equal key belong together if no more time than this lies between them. Exporters, stalled
#: hand-offs and leases stay well below it; a room or id that is used again an hour later does not.
JOIN_WINDOW_NS = 120_000_000_000

_OPEN_END_NS = 1 << 62
_NO_ROLES: frozenset[str] = frozenset()
ROLES_OF: dict[str, frozenset[str]] = {
    "": _NO_ROLES,
    **{role: frozenset((role,)) for role in ("prefill", "decode", "aggregated")},
}

#: Joins from the strongest to the weakest; a request is labelled with the weakest one it needed.
JOINS = ("none", "parent", "request_id", "room", "context_id", "trace_id")
_WEAKNESS = {join: rank for rank, join in enumerate(JOINS)}


@dataclass(slots=True)
class Unit:
    """Spans held together by parent chains, or one record; what the later joins work on."""

    spans: list[Span]
    records: list[Record]
    edge: Span | None
    edge_kind: str
    keys: Collection[Key]
    roles: frozenset[str]
    start_ns: int
    end_ns: int
    makes_request: bool
    orphan: bool  #: the topmost span names a parent that is not here
    join: str = "none"
    joined_into: Unit | None = None
    notes: list[RequestWarning] = field(default_factory=list)


def root_of(unit: Unit) -> Unit:
    while unit.joined_into is not None:
        unit = unit.joined_into
    return unit


def merge(into: Unit, other: Unit, join: str) -> None:
    """Join two root units. Records never weaken the label: they add facts, they do not hold spans together."""
    into, other = root_of(into), root_of(other)
    if into is other:
        return
    if other.edge is not None and (into.edge is None or other.start_ns < into.start_ns):
        into, other = other, into
    needed = join if into.spans and other.spans else "none"
    for each in (other.join, needed):
        if _WEAKNESS[each] > _WEAKNESS[into.join]:
            into.join = each
    if into.spans and other.spans:
        if other.start_ns < into.start_ns:
            into.start_ns = other.start_ns
        if other.end_ns > into.end_ns:
            into.end_ns = other.end_ns
    elif other.spans:
        into.start_ns, into.end_ns = other.start_ns, other.end_ns
    into.spans.extend(other.spans)
    into.records.extend(other.records)
    into.keys = into.keys or other.keys  # from here on only whether there are any is asked
    if not other.roles <= into.roles:
        into.roles |= other.roles
    into.makes_request |= other.makes_request
    into.notes.extend(other.notes)
    other.joined_into = into


# -------------------------------------------------------------------------------------------------- the usual case


def whole_traces(spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> tuple[list[Unit], list[Span]]:
    """Traces that plainly hold one request, as one unit each, and the spans of all other traces.

    The rules below would give the same, span by span; most traces need none of them.
    """
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    units: list[Unit] = []
    others: list[Span] = []
    for inside in traces.values():
        unit = _whole_trace(inside, identities)
        if unit is None:
            others += inside
        else:
            units.append(unit)
    return units, others


def _whole_trace(inside: list[Span], identities: dict[SpanKey, Identity]) -> Unit | None:
    """One unit if the first span is an edge and every other is below it, or tells something and has one of its keys."""
    top = inside[0]
    own = identities[top.key]
    if own.part != "edge":
        return None
    keys: Collection[Key] = own.keys
    role_sets = {ROLES_OF[own.role]}
    below = {top.key}
    end_ns, join = top.end_ns or _OPEN_END_NS, "none"
    for span in inside[1:]:
        identity = identities[span.key]
        if span.parent_key in below:
            needed = "parent"
        elif identity.part in ("edge", "inner") or span.start_ns - end_ns > JOIN_WINDOW_NS:
            return None
        elif identity.keys == own.keys and own.keys:
            needed = own.keys[0].kind
        else:
            return None
        if needed != join and _WEAKNESS[needed] > _WEAKNESS[join]:
            join = needed
        below.add(span.key)
        if span.end_ns > end_ns:
            end_ns = span.end_ns
        if identity.keys and identity.keys != own.keys:
            keys = {*keys, *identity.keys}
        role_sets.add(ROLES_OF[identity.role])
    return Unit(
        spans=inside,
        records=[],
        edge=top,
        edge_kind=own.edge,
        keys=keys,
        roles=frozenset().union(*role_sets),
        start_ns=top.start_ns,
        end_ns=max(end_ns, inside[-1].start_ns),
        makes_request=True,
        orphan=bool(top.parent_id),
        join=join,
    )


# ------------------------------------------------------------------------------------------------- parent chains


def units_by_parent(spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> list[Unit]:
    """One unit per outermost edge subtree; spans below no edge hold together below their outermost telling span."""
    by_key = {span.key: span for span in spans}
    anchor: dict[SpanKey, Span] = {}
    members: dict[SpanKey, list[Span]] = defaultdict(list)
    for span in spans:
        if span.parent_key not in by_key:
            anchor[span.key] = span
        elif span.parent_key in anchor:  # as a rule: a parent starts before its children
            anchor[span.key] = _anchor_below(span, anchor[span.parent_key], identities)
        else:
            _find_anchor(span, by_key, identities, anchor)
        members[anchor[span.key].key].append(span)
    units = {key: _unit(by_key[key], inside, by_key, identities) for key, inside in members.items()}
    _join_callers(units, by_key, anchor, identities)
    return list(units.values())


def _join_callers(
    units: dict[SpanKey, Unit],
    by_key: dict[SpanKey, Span],
    anchor: dict[SpanKey, Span],
    identities: dict[SpanKey, Identity],
) -> None:
    """A call with exactly one edge below it is that request as its caller saw it (an agent's HTTP client span)."""
    called: dict[SpanKey, list[Unit]] = defaultdict(list)
    for unit in units.values():
        if unit.edge is not None and unit.edge.parent_id:
            parent = by_key.get(unit.edge.parent_key)
            if parent is not None and identities[anchor[parent.key].key].part == "leg":
                called[anchor[parent.key].key].append(unit)
    for key, below in called.items():
        if len(below) == 1:
            merge(below[0], units[key], "parent")


def _find_anchor(
    span: Span, by_key: dict[SpanKey, Span], identities: dict[SpanKey, Identity], anchor: dict[SpanKey, Span]
) -> None:
    """Set the anchor of ``span`` and of everything above it. Iterative: chains can be 100,000 spans long."""
    chain: list[Span] = []
    seen: set[SpanKey] = set()
    above: Span | None = span
    while above is not None and above.key not in anchor and above.key not in seen:
        chain.append(above)
        seen.add(above.key)
        above = by_key.get(above.parent_key)
    inherited = anchor.get(above.key) if above is not None else None
    for link in reversed(chain):
        inherited = _anchor_below(link, inherited, identities)
        anchor[link.key] = inherited


def _anchor_below(span: Span, inherited: Span | None, identities: dict[SpanKey, Identity]) -> Span:
    """The outermost edge wins; else the outermost span that tells something; else the topmost span."""
    if inherited is None:
        return span
    above, here = identities[inherited.key].part, identities[span.key].part
    if above == "edge":
        return inherited
    if here == "edge" or (above == "inner" and here != "inner"):
        return span
    return inherited


def _unit(top: Span, inside: list[Span], by_key: dict[SpanKey, Span], identities: dict[SpanKey, Identity]) -> Unit:
    """The unit of ``inside``, which is sorted by start."""
    own = identities[top.key]
    mine = [identities[span.key] for span in inside] if len(inside) > 1 else [own]
    is_edge = own.part == "edge"
    end_ns = inside[-1].start_ns
    for span in inside:
        if span.end_ns > end_ns:
            end_ns = span.end_ns
    if is_edge and not top.end_ns:
        end_ns = _OPEN_END_NS  # the edge has not ended: whatever comes may still be part of it
    keys, roles = _keys_and_roles(mine)
    return Unit(
        spans=inside,
        records=[],
        edge=top if is_edge else None,
        edge_kind=own.edge if is_edge else "",
        keys=keys,
        roles=roles,
        start_ns=inside[0].start_ns,
        end_ns=end_ns,
        makes_request=own.part != "inner" or any(identity.part != "inner" for identity in mine),
        orphan=bool(top.parent_id) and top.parent_key not in by_key,
        join="parent" if len(inside) > 1 else "none",
    )


def _keys_and_roles(mine: Sequence[Identity]) -> tuple[Collection[Key], frozenset[str]]:
    """Each key once; the roles as one of a few shared sets."""
    if len(mine) == 1:
        return mine[0].keys, ROLES_OF[mine[0].role]
    keys = {key for identity in mine for key in identity.keys}
    return keys, frozenset().union(*[ROLES_OF[role] for role in {identity.role for identity in mine}])


def units_of_records(records: Sequence[tuple[Record, tuple[Key, ...]]]) -> list[Unit]:
    return [
        Unit(
            spans=[],
            records=[record],
            edge=None,
            edge_kind="",
            keys=keys,
            roles=_NO_ROLES,
            start_ns=record.time_ns,
            end_ns=record.time_ns,
            makes_request=True,
            orphan=False,
        )
        for record, keys in sorted(records, key=lambda r: (r[0].time_ns, r[0].kind, r[0].key))
    ]
