"""Clock offsets inside one request: intervals from causal edges, and the smallest shift that restores causality.

Owns definitions section 8. Works on one request at a time so that the answer depends on nothing but its spans; the
doctor intersects the intervals of many requests. Raw stamps are kept in the store; only the activities move.

A causal edge "a on clock A before b on clock B" means offset(B) - offset(A) >= a - b. The reference clock (the
edge's, else P's) has offset 0, so all edges together bound every other clock by an interval. If 0 lies in it nothing
moves; else the nearer bound is the smallest shift.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdtrace.assemble.draft import Draft
from pdtrace.model import Activity, Before, ClockOffset, Edge, Envelope, Evidence, Leg

_Stamped = Activity | Edge | Envelope | Leg
_Bounds = dict[tuple[str, str], int]


def align_clocks(draft: Draft) -> None:
    """Choose the reference clock, bound every other clock against it and move what must move."""
    reading = draft.reading
    draft.clock = _reference(draft)
    stamped = _stamped(draft)
    found = {item.clock for item in stamped}
    if reading.before:
        found.update([before.clock_a for before in reading.before])
    if len(found) < 2:
        return
    clocks = sorted(found)
    before = [*reading.before, *_causal_edges(draft, stamped)]
    # Least difference offset(B) - offset(A) that the edges from A to B demand.
    least: _Bounds = {}
    for edge in before:
        clock_a, a_ns, clock_b, b_ns, _ = edge
        if clock_a != clock_b:
            known_ns = least.get((clock_a, clock_b))
            if known_ns is None or a_ns - b_ns > known_ns:
                least[(clock_a, clock_b)] = a_ns - b_ns
    shifts: dict[str, int] = {}
    contradicted = any(bound > 0 for bound in least.values())
    proven = dict(least)
    for clock in clocks:
        if clock != draft.clock:
            # Paths over other clocks matter only where something must move.
            bounds = _closed(least, [draft.clock, *clocks]) if contradicted else least
            _align(clock, draft, bounds, least, shifts, proven)
    moved = {clock: shift for clock, shift in shifts.items() if shift}
    if moved:
        _note_inversions(draft, before)
        _shift(draft, moved)


def _reference(draft: Draft) -> str:
    edges = draft.reading.edges
    if edges:
        return (edges[0] if len(edges) == 1 else min(edges, key=_outermost)).clock
    visits: list[Envelope | Leg | Activity] = [*draft.worker_visits(), *draft.reading.activities]
    first = min(
        visits, key=lambda v: (v.role not in ("prefill", "aggregated"), v.start_ns, v.span_id, v.clock), default=None
    )
    return first.clock if first else ""


_EDGE_RANK = {"client": 0, "frontend": 1, "router": 2, "": 3}


def _outermost(edge: Edge) -> tuple[int, int, str]:
    return _EDGE_RANK[edge.kind], edge.start_ns, edge.span_id


def _stamped(draft: Draft) -> list[_Stamped]:
    reading = draft.reading
    return [*reading.edges, *reading.legs, *reading.envelopes, *reading.activities]


def _causal_edges(draft: Draft, stamped: list[_Stamped]) -> Iterator[Before]:
    """What must have happened before what, told from the request's own structure."""
    by_span: dict[str, _Stamped] = {}
    for item in stamped:
        known = by_span.get(item.span_id)
        if known is None or known.start_ns > item.start_ns:
            by_span[item.span_id] = item
    by_span.pop("", None)
    if len({item.clock for item in by_span.values()}) > 1:
        for span, above in draft.tree.nearest_above(by_span):
            parent, child = by_span[above.span_id], by_span[span.span_id]
            if parent.clock != child.clock:
                why = "a call is sent before it is received"
                yield Before(parent.clock, above.start_ns, child.clock, span.start_ns, why)
    yield from _first_token_edges(draft)
    yield from _stage_edges(draft)
    yield from _transfer_edges(draft)


def _first_token_edges(draft: Draft) -> Iterator[Before]:
    reading = draft.reading
    answering = [e for e in reading.envelopes if e.role in ("decode", "aggregated") and e.first_token_ns is not None]
    for edge in reading.edges:
        for visit in answering:
            if edge.first_token_ns is not None and visit.first_token_ns is not None:
                why = "D makes the first token before the front end passes it on"
                yield Before(visit.clock, visit.first_token_ns, edge.clock, edge.first_token_ns, why)
    finished = [e for e in reading.envelopes if e.role == "prefill" and e.first_token_ns is not None and not e.failed]
    for prefill in finished:
        same = [e for e in finished if e.attempt == prefill.attempt]
        after = [e for e in answering if e.role == "decode" and e.attempt == prefill.attempt]
        if len(same) == len(after) == 1:  # of several, whose attempts are not told apart, any pair may be wrong
            assert prefill.first_token_ns is not None
            assert after[0].first_token_ns is not None
            yield Before(prefill.clock, prefill.first_token_ns, after[0].clock, after[0].first_token_ns, _PROMPT_FIRST)


_PROMPT_FIRST = "P finishes the prompt before D makes the first token"


def _stage_edges(draft: Draft) -> Iterator[Before]:
    """The same of workers that report stages: the last attempt's prompt, then its state on D, then its first token.

    Nothing is said of a prompt whose state D did not use.
    """
    activities = [a for a in draft.reading.activities if a.end_ns and a.role]
    firsts = [a for a in activities if a.stage == "first_token" and not a.failed]
    if len({a.attempt for a in firsts}) != 1:  # after a migration two attempts have one, and the user saw either
        return
    attempt = firsts[0].attempt
    first = max(firsts, key=lambda a: (a.end_ns, a.clock))
    after: list[tuple[str, int, str]] = [(first.clock, first.end_ns, _PROMPT_FIRST)]
    for edge in draft.reading.edges:
        if edge.first_token_ns is not None:
            why = "D makes the first token before the front end passes it on"
            yield Before(first.clock, first.end_ns, edge.clock, edge.first_token_ns, why)
            after.append(
                (edge.clock, edge.first_token_ns, "P finishes the prompt before the front end has the first token")
            )
    here = [a for a in activities if a.attempt == attempt]
    if any(a.failed or (a.stage == "recompute" and a.role != "prefill") for a in here):
        return
    loads = [a for a in here if a.stage == "handoff" and a.role == "decode"]
    if loads:
        last = max(loads, key=lambda a: (a.end_ns, a.clock))
        after.append((last.clock, last.end_ns, "P finishes the prompt before D has all of its state"))
    for prompt in here:
        if prompt.role == "prefill" and prompt.stage in ("prefill", "recompute"):
            for clock, at_ns, why in after:
                yield Before(prompt.clock, prompt.end_ns, clock, at_ns, why)


def _transfer_edges(draft: Draft) -> Iterator[Before]:
    """What P sent arrives on D after it was sent: compared rank by rank, at the ends only (a read may be posted early)."""
    last_end: dict[tuple[int, str, str], dict[str, Activity]] = {}
    for activity in draft.reading.activities:
        if activity.stage == "handoff" and activity.side and activity.end_ns and not activity.failed:
            sides = last_end.setdefault((activity.attempt, activity.rank, activity.chunk), {})
            known = sides.get(activity.side)
            if known is None or activity.end_ns > known.end_ns:
                sides[activity.side] = activity
    for sides in last_end.values():
        if len(sides) == 2:
            sent, received = sides["send"], sides["receive"]
            why = "a transfer is received after it was sent"
            yield Before(sent.clock, sent.end_ns, received.clock, received.end_ns, why)


def _closed(least: _Bounds, clocks: list[str]) -> _Bounds:
    """Demands along paths of several clocks (longest paths; a handful of clocks)."""
    closed = dict(least)
    for via in clocks:
        for a in clocks:
            if a == via or (a, via) not in closed:
                continue
            for b in clocks:
                if b not in (a, via) and (via, b) in closed:
                    through = closed[(a, via)] + closed[(via, b)]
                    closed[(a, b)] = max(closed.get((a, b), through), through)
    return closed


def _align(clock: str, draft: Draft, closed: _Bounds, least: _Bounds, shifts: dict[str, int], proven: _Bounds) -> None:
    """Choose the shift of one clock.

    ``least`` and ``closed`` hold the shifts already chosen. ``proven`` does not: a chosen shift is the smallest that will
    do and proves nothing of other clocks. Clocks that need none are taken to agree, there too.
    """
    low = closed.get((draft.clock, clock))
    back = closed.get((clock, draft.clock))
    high = None if back is None else -back
    shift = wanted = 0
    if low is not None and high is not None and low > high:
        wanted = low
        draft.reading.warn(
            "clock_conflict",
            f"stamps of {clock} cannot be reconciled with {draft.clock}: causal edges ask for at least {low} ns and at "
            f"most {high} ns; nothing was moved",
        )
    else:
        wanted = max(low or 0, 0) if low is not None and low > 0 else min(high, 0) if high is not None else 0
        if abs(wanted) <= draft.limits.max_clock_shift_ns:
            shift = wanted
        else:
            draft.reading.warn(
                "clock_shift_refused",
                f"{clock} seems {_by(wanted)} {draft.clock}, more than the limit of "
                f"{draft.limits.max_clock_shift_ns / 1e6:g} ms; nothing was moved (proposed: {wanted} ns)",
            )
    if shift:
        bounds = f"{'-inf' if low is None else low} .. {'inf' if high is None else high} ns"
        draft.reading.warn(
            "clock_shifted",
            f"{clock} is {_by(shift)} {draft.clock} (possible offsets {bounds}): its stamps were moved by {shift} ns",
        )
    shifts[clock] = shift
    least[(draft.clock, clock)] = max(least.get((draft.clock, clock), shift), shift)
    if not (low is not None and high is not None and low > high):
        least[(clock, draft.clock)] = max(least.get((clock, draft.clock), -shift), -shift)
    known = proven if closed is least else _closed(proven, sorted({name for pair in proven for name in pair}))
    back = known.get((clock, draft.clock))
    draft.offsets.append(
        ClockOffset(clock, draft.clock, known.get((draft.clock, clock)), None if back is None else -back, shift)
    )
    if not wanted:
        proven[(draft.clock, clock)] = max(proven.get((draft.clock, clock), 0), 0)
        proven[(clock, draft.clock)] = max(proven.get((clock, draft.clock), 0), 0)


def _by(shift_ns: int) -> str:
    return f"{abs(shift_ns) / 1e6:g} ms {'behind' if shift_ns > 0 else 'ahead of'}"


def _note_inversions(draft: Draft, before: list[Before]) -> None:
    """A gap that the shift made zero is unknown, not 0: say by how much it was inverted."""
    worst: dict[str, Before] = {}
    for edge in before:
        if edge.a_ns > edge.b_ns and edge.clock_a != edge.clock_b:
            known = worst.get(edge.why)
            if known is None or edge.a_ns - edge.b_ns > known.a_ns - known.b_ns:
                worst[edge.why] = edge
    for why, edge in sorted(worst.items()):
        draft.reading.warn(
            "inverted_gap",
            f"{why}, but the stamps of {edge.clock_a} and {edge.clock_b} say otherwise by {edge.a_ns - edge.b_ns} ns: "
            "the gap between them is unknown",
        )
        draft.reading.evidence.append(
            Evidence("inverted_gap", edge.a_ns - edge.b_ns, "ns", f"{why}: inverted by this much, across two clocks")
        )


def _shift(draft: Draft, moved: dict[str, int]) -> None:
    for item in _stamped(draft):
        shift = moved.get(item.clock, 0)
        if shift:
            item.start_ns += shift
            if item.end_ns:
                item.end_ns += shift
            if isinstance(item, Edge | Envelope) and item.first_token_ns is not None:
                item.first_token_ns += shift
    facts = draft.reading.facts
    if facts.get("first_token_ns") is not None:
        facts["first_token_ns"] += moved.get(str(facts.get("first_token_clock", "")), 0)
