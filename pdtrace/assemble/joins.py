"""Units that belong to one request although no parent ties them: equal keys near in time, then the bare trace id.

Owns the later joins of definitions section 1 and their windows. Does not make units (units.py).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from pdtrace.assemble.units import JOIN_WINDOW_NS, ROLES_OF, Unit, merge, root_of
from pdtrace.model import Key, RequestWarning

#: How far a fragment may start before the edge it belongs to: clocks of two hosts may differ.
CLOCK_SLACK_NS = 2_000_000_000


# --------------------------------------------------------------------------------------------------------- keys


def join_by_key(units: list[Unit]) -> None:
    holders: dict[Key, list[Unit]] = defaultdict(list)
    for unit in units:
        for key in unit.keys:
            holders[key].append(unit)
    shared = sorted(key for key, sharing in holders.items() if len(sharing) > 1)
    for kind in ("request_id", "room", "context_id"):
        for key in shared:
            if key.kind == kind:
                _join_holders(holders[key], kind)


def _join_holders(sharing: list[Unit], join: str) -> None:
    """Join the units that hold one key: to the edge they lie closest to, else to each other while time is near."""
    roots = {id(root): root for root in map(root_of, sharing)}.values()
    if len(roots) == 1:
        return
    edges = sorted([root for root in roots if root.edge is not None], key=_by_start)
    loose = sorted([root for root in roots if root.edge is None], key=_by_start)
    for outer, inner in _pairs(edges):
        if outer.edge_kind != inner.edge_kind and _gap_ns(outer, inner) == 0:
            merge(outer, inner, join)  # a front end and a router that saw the same call, in two traces
    if len(edges) > 1:
        edges = _roots(edges, lambda unit: unit.edge is not None)
    left: list[Unit] = []
    for unit in loose:
        near = [edge for edge in edges if _near(edge, unit)]
        if near:
            closest = near[0] if len(near) == 1 else min(near, key=lambda edge: _distance_ns(edge, unit))
            merge(closest, unit, join)
        else:
            left.append(unit)
    for before, after in itertools.pairwise(left):
        if _near(root_of(before), after):
            merge(before, after, join)


def _by_start(unit: Unit) -> tuple[int, int, str]:
    spans = unit.spans
    first = spans[0].key if len(spans) == 1 else min((span.key for span in spans), default="")
    return (unit.start_ns, unit.end_ns, first)


def _pairs(units: Sequence[Unit]) -> Iterable[tuple[Unit, Unit]]:
    return ((a, b) for at, a in enumerate(units) for b in units[at + 1 :])


def _gap_ns(a: Unit, b: Unit) -> int:
    """Time between two units; 0 if they overlap."""
    return max(0, max(a.start_ns, b.start_ns) - min(a.end_ns, b.end_ns))


def _near(a: Unit, b: Unit) -> bool:
    if not a.start_ns or not b.start_ns:  # a record without a wall clock: its key is all there is
        return True
    return b.start_ns - a.end_ns <= JOIN_WINDOW_NS and a.start_ns - b.end_ns <= JOIN_WINDOW_NS


def _distance_ns(edge: Unit, unit: Unit) -> tuple[int, int]:
    """How badly ``unit`` fits into ``edge``: time outside it first, then time since its start."""
    outside = max(0, edge.start_ns - unit.start_ns, unit.start_ns - edge.end_ns)
    return (outside, abs(unit.start_ns - edge.start_ns))


# -------------------------------------------------------------------------------------------------------- traces


def join_by_trace(units: list[Unit]) -> None:
    traces: dict[str, list[Unit]] = defaultdict(list)
    for unit in units:
        if unit.joined_into is None:
            for trace in {span.trace_id for span in unit.spans} | {r.trace_id for r in unit.records if r.trace_id}:
                traces[trace].append(unit)
    for _, members in sorted(traces.items()):
        if len(members) > 1:
            _join_one_trace(members)


def _roots(units: Iterable[Unit], wanted: Callable[[Unit], bool]) -> list[Unit]:
    """Root units of ``units`` that are ``wanted``, each once, by start."""
    found = {id(r): r for r in map(root_of, units) if wanted(r)}
    return sorted(found.values(), key=_by_start) if len(found) > 1 else list(found.values())


def _join_one_trace(members: list[Unit]) -> None:
    """Attach what has no edge and no partner yet, if exactly one request of the trace can be meant."""
    # Telling spans without any key of their own are tied by nothing but the trace: they belong together.
    keyless = _roots(members, lambda u: u.edge is None and not u.keys and u.makes_request)
    named = _roots(members, lambda u: u.edge is not None or bool(u.keys))
    if not named:
        for other in keyless[1:]:
            merge(keyless[0], other, "trace_id")
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
        merge(loose[0], loose[1], "trace_id")
    requests = _roots(members, lambda u: u.makes_request)
    for unit in _roots(members, lambda u: not u.makes_request):
        if len(requests) == 1:
            _attach(unit, requests)


def _attach(unit: Unit, candidates: list[Unit]) -> None:
    if len(candidates) == 1:
        if unit.orphan:
            unit.notes.append(
                RequestWarning(
                    "parent_missing",
                    f"{len(unit.spans)} span(s) name a parent that never arrived; attached by their trace id",
                )
            )
        merge(candidates[0], unit, "trace_id")
    elif unit.makes_request:
        unit.notes.append(
            RequestWarning(
                "ambiguous_trace",
                f"{len(candidates)} requests of this trace could own {len(unit.spans)} span(s) that carry no request "
                "id; they are kept apart",
            )
        )


def _fits(edge: Unit, unit: Unit) -> bool:
    """Whether ``unit`` may have happened inside ``edge``'s request; records without a clock fit anywhere."""
    if not unit.start_ns or not edge.start_ns:
        return True
    return edge.start_ns - CLOCK_SLACK_NS <= unit.start_ns <= edge.end_ns + CLOCK_SLACK_NS


def _complementary(a: Unit, b: Unit) -> bool:
    """One is P's side and the other D's, or one of them is a record about the trace."""
    return not (a.spans and b.spans) or {a.roles, b.roles} == {ROLES_OF["prefill"], ROLES_OF["decode"]}
