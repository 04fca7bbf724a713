"""Which spans are one request: fragments to groups, across traces.

Owns the joins of definitions section 1, in their order: the subtree of one edge span, then an engine request id, a
room or a context id inside a time window, and the bare trace id only when exactly one candidate is left. Does not
read what the spans say (dialects do that) and asks only for their identities.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from pdtrace.dialects.contract import BY_START
from pdtrace.model import Identity, Key, Record, RequestWarning, Span, SpanKey

#: Two fragments with an equal key belong together if no more time than this lies between them. Exporters, stalled
#: hand-offs and leases stay well below it; a room or id that is used again an hour later does not.
JOIN_WINDOW_NS = 120_000_000_000
#: How far a fragment may start before the edge it belongs to: clocks of two hosts may differ.
CLOCK_SLACK_NS = 2_000_000_000

_OPEN_END_NS = 1 << 62
_NO_ROLES: frozenset[str] = frozenset()
_ROLES_OF: dict[str, frozenset[str]] = {
    "": _NO_ROLES,
    **{role: frozenset((role,)) for role in ("prefill", "decode", "aggregated")},
}

#: Joins from the strongest to the weakest; a request is labelled with the weakest one it needed.
JOINS = ("none", "parent", "request_id", "room", "context_id", "trace_id")
_WEAKNESS = {join: rank for rank, join in enumerate(JOINS)}


@dataclass(slots=True)
class Group:
    """The fragments of one request."""

    spans: list[Span]
    records: list[Record] = field(default_factory=list)
    stitched_by: str = "none"
    warnings: list[RequestWarning] = field(default_factory=list)


@dataclass(slots=True)
class _Unit:
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
    joined_into: _Unit | None = None
    notes: list[RequestWarning] = field(default_factory=list)


def group(
    spans: Sequence[Span],
    identities: dict[SpanKey, Identity],
    records: Sequence[tuple[Record, tuple[Key, ...]]] = (),
) -> list[Group]:
    """Split ``spans`` (unique keys, noise already removed) and ``records`` into requests.

    The answer does not depend on the order of the arguments.
    """
    spans = sorted(spans, key=BY_START)
    units, others = _whole_traces(spans, identities)
    units += _units_by_parent(others, identities)
    units += _units_of_records(records)
    _join_by_key(units)
    _join_by_trace(units)
    return _groups(units)


# -------------------------------------------------------------------------------------------------- the usual case


def _whole_traces(spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> tuple[list[_Unit], list[Span]]:
    """Traces that plainly hold one request, as one unit each, and the spans of all other traces.

    The rules below would give the same, span by span; most traces need none of them.
    """
    traces: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        traces[span.trace_id].append(span)
    units: list[_Unit] = []
    others: list[Span] = []
    for inside in traces.values():
        unit = _whole_trace(inside, identities)
        if unit is None:
            others += inside
        else:
            units.append(unit)
    return units, others


def _whole_trace(inside: list[Span], identities: dict[SpanKey, Identity]) -> _Unit | None:
    """One unit if the first span is an edge and every other is below it, or tells something and has one of its keys."""
    top = inside[0]
    own = identities[top.key]
    if own.part != "edge":
        return None
    keys: Collection[Key] = own.keys
    role_sets = {_ROLES_OF[own.role]}
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
        role_sets.add(_ROLES_OF[identity.role])
    return _Unit(
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


def _units_by_parent(spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> list[_Unit]:
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
    units: dict[SpanKey, _Unit],
    by_key: dict[SpanKey, Span],
    anchor: dict[SpanKey, Span],
    identities: dict[SpanKey, Identity],
) -> None:
    """A call with exactly one edge below it is that request as its caller saw it (an agent's HTTP client span)."""
    called: dict[SpanKey, list[_Unit]] = defaultdict(list)
    for unit in units.values():
        if unit.edge is not None and unit.edge.parent_id:
            parent = by_key.get(unit.edge.parent_key)
            if parent is not None and identities[anchor[parent.key].key].part == "leg":
                called[anchor[parent.key].key].append(unit)
    for key, below in called.items():
        if len(below) == 1:
            _merge(below[0], units[key], "parent")


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


def _unit(top: Span, inside: list[Span], by_key: dict[SpanKey, Span], identities: dict[SpanKey, Identity]) -> _Unit:
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
    return _Unit(
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
        return mine[0].keys, _ROLES_OF[mine[0].role]
    keys = {key for identity in mine for key in identity.keys}
    return keys, frozenset().union(*[_ROLES_OF[role] for role in {identity.role for identity in mine}])


def _units_of_records(records: Sequence[tuple[Record, tuple[Key, ...]]]) -> list[_Unit]:
    return [
        _Unit(
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


# --------------------------------------------------------------------------------------------------------- keys


def _root(unit: _Unit) -> _Unit:
    while unit.joined_into is not None:
        unit = unit.joined_into
    return unit


def _merge(into: _Unit, other: _Unit, join: str) -> None:
    """Join two root units. Records never weaken the label: they add facts, they do not hold spans together."""
    into, other = _root(into), _root(other)
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


def _join_by_key(units: list[_Unit]) -> None:
    holders: dict[Key, list[_Unit]] = defaultdict(list)
    for unit in units:
        for key in unit.keys:
            holders[key].append(unit)
    shared = sorted(key for key, sharing in holders.items() if len(sharing) > 1)
    for kind in ("request_id", "room", "context_id"):
        for key in shared:
            if key.kind == kind:
                _join_holders(holders[key], kind)


def _join_holders(sharing: list[_Unit], join: str) -> None:
    """Join the units that hold one key: to the edge they lie closest to, else to each other while time is near."""
    roots = {id(root): root for root in map(_root, sharing)}.values()
    if len(roots) == 1:
        return
    edges = sorted([root for root in roots if root.edge is not None], key=_by_start)
    loose = sorted([root for root in roots if root.edge is None], key=_by_start)
    for outer, inner in _pairs(edges):
        if outer.edge_kind != inner.edge_kind and _gap_ns(outer, inner) == 0:
            _merge(outer, inner, join)  # a front end and a router that saw the same call, in two traces
    if len(edges) > 1:
        edges = _roots(edges, lambda unit: unit.edge is not None)
    left: list[_Unit] = []
    for unit in loose:
        near = [edge for edge in edges if _near(edge, unit)]
        if near:
            closest = near[0] if len(near) == 1 else min(near, key=lambda edge: _distance_ns(edge, unit))
            _merge(closest, unit, join)
        else:
            left.append(unit)
    for before, after in itertools.pairwise(left):
        if _near(_root(before), after):
            _merge(before, after, join)


def _by_start(unit: _Unit) -> tuple[int, int, str]:
    spans = unit.spans
    first = spans[0].key if len(spans) == 1 else min((span.key for span in spans), default="")
    return (unit.start_ns, unit.end_ns, first)


def _pairs(units: Sequence[_Unit]) -> Iterable[tuple[_Unit, _Unit]]:
    return ((a, b) for at, a in enumerate(units) for b in units[at + 1 :])


def _gap_ns(a: _Unit, b: _Unit) -> int:
    """Time between two units; 0 if they overlap."""
    return max(0, max(a.start_ns, b.start_ns) - min(a.end_ns, b.end_ns))


def _near(a: _Unit, b: _Unit) -> bool:
    if not a.start_ns or not b.start_ns:  # a record without a wall clock: its key is all there is
        return True
    return b.start_ns - a.end_ns <= JOIN_WINDOW_NS and a.start_ns - b.end_ns <= JOIN_WINDOW_NS


def _distance_ns(edge: _Unit, unit: _Unit) -> tuple[int, int]:
    """How badly ``unit`` fits into ``edge``: time outside it first, then time since its start."""
    outside = max(0, edge.start_ns - unit.start_ns, unit.start_ns - edge.end_ns)
    return (outside, abs(unit.start_ns - edge.start_ns))


# -------------------------------------------------------------------------------------------------------- traces


def _join_by_trace(units: list[_Unit]) -> None:
    traces: dict[str, list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.joined_into is None:
            for trace in {span.trace_id for span in unit.spans} | {r.trace_id for r in unit.records if r.trace_id}:
                traces[trace].append(unit)
    for _, members in sorted(traces.items()):
        if len(members) > 1:
            _join_one_trace(members)


def _roots(units: Iterable[_Unit], wanted: Callable[[_Unit], bool]) -> list[_Unit]:
    """Root units of ``units`` that are ``wanted``, each once, by start."""
    found = {id(r): r for r in map(_root, units) if wanted(r)}
    return sorted(found.values(), key=_by_start) if len(found) > 1 else list(found.values())


def _join_one_trace(members: list[_Unit]) -> None:
    """Attach what has no edge and no partner yet, if exactly one request of the trace can be meant."""
    # Telling spans without any key of their own are tied by nothing but the trace: they belong together.
    keyless = _roots(members, lambda u: u.edge is None and not u.keys and u.makes_request)
    named = _roots(members, lambda u: u.edge is not None or bool(u.keys))
    if not named:
        for other in keyless[1:]:
            _merge(keyless[0], other, "trace_id")
    else:
        for unit in keyless:
            _attach(unit, [candidate for candidate in named if _fits(candidate, unit)])
    edges = _roots(members, lambda u: u.edge is not None)
    loose = _roots(members, lambda u: u.edge is None and u.makes_request)
    for unit in loose:
        inside = [edge for edge in edges if _fits(edge, unit)]
        if inside:
            _attach(unit, inside)
    loose = _roots(members, lambda u: u.edge is None and u.makes_request)
    if not edges and len(loose) == 2 and _complementary(*loose):
        _merge(loose[0], loose[1], "trace_id")
    requests = _roots(members, lambda u: u.makes_request)
    for unit in _roots(members, lambda u: not u.makes_request):
        if len(requests) == 1:
            _attach(unit, requests)


def _attach(unit: _Unit, candidates: list[_Unit]) -> None:
    if len(candidates) == 1:
        if unit.orphan:
            unit.notes.append(
                RequestWarning(
                    "parent_missing",
                    f"{len(unit.spans)} span(s) name a parent that never arrived; attached by their trace id",
                )
            )
        _merge(candidates[0], unit, "trace_id")
    elif unit.makes_request:
        unit.notes.append(
            RequestWarning(
                "ambiguous_trace",
                f"{len(candidates)} requests of this trace could own {len(unit.spans)} span(s) that carry no request "
                "id; they are kept apart",
            )
        )


def _fits(edge: _Unit, unit: _Unit) -> bool:
    """Whether ``unit`` may have happened inside ``edge``'s request; records without a clock fit anywhere."""
    if not unit.start_ns or not edge.start_ns:
        return True
    return edge.start_ns - CLOCK_SLACK_NS <= unit.start_ns <= edge.end_ns + CLOCK_SLACK_NS


def _complementary(a: _Unit, b: _Unit) -> bool:
    """One is P's side and the other D's, or one of them is a record about the trace."""
    return not (a.spans and b.spans) or {a.roles, b.roles} == {_ROLES_OF["prefill"], _ROLES_OF["decode"]}


def _groups(units: list[_Unit]) -> list[Group]:
    return [
        Group(spans=unit.spans, records=unit.records, stitched_by=unit.join, warnings=unit.notes)
        for unit in units
        if unit.joined_into is None and unit.makes_request
    ]
