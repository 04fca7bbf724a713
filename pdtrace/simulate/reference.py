"""The right answers by brute force: who is charged at every instant, and what each stage's time really buys.

Owns a second reading of the definitions, written for being plain, not fast. It shares no code with the service's own
rule on purpose: where the two disagree, one of them is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

Interval = tuple[str, int, int]
"""Stage, start, end."""

PRECEDENCE: Final = (
    "prefill",
    "recompute",
    "handoff",
    "first_token",
    "prefill_queue",
    "bootstrap",
    "prefill_opaque",
    "decode_queue",
    "decode_opaque",
    "router_queue",
    "route",
)
"""Stages 1 to 11 of the definitions."""

_RANK: Final = {stage: rank for rank, stage in enumerate(PRECEDENCE)}
_OPAQUE: Final = ("prefill_opaque", "decode_opaque", "unattributed")
_CONTAINERS: Final = ("ingress", "relay", "egress")

#: Upstream first, as a request passes the stages. The relay between the legs counts as the front end's part.
_FLOW: Final = {
    stage: place
    for place, stage in enumerate(
        (
            "ingress",
            "relay",
            "route",
            "router_queue",
            "bootstrap",
            "prefill_queue",
            "prefill_opaque",
            "prefill",
            "handoff",
            "recompute",
            "decode_queue",
            "decode_opaque",
            "first_token",
            "egress",
        )
    )
}


def sections(t0_ns: int, t1_ns: int, doings: Sequence[Interval]) -> list[Interval]:
    """Charge every instant of a window to one stage.

    Args:
        t0_ns, t1_ns: The window.
        doings: Stages 1 to 11 and ``container``, on the same clock.

    Returns:
        Sections in order, tiling the window; neighbours differ.
    """
    inside = [(stage, max(start, t0_ns), min(end, t1_ns)) for stage, start, end in doings]
    inside = [(stage, start, end) for stage, start, end in inside if start < end]
    cuts = sorted({t0_ns, t1_ns, *(at for _, start, end in inside for at in (start, end))})
    pieces: list[tuple[str, int, int]] = []
    for start, end in pairwise(cuts):
        active = [stage for stage, s, e in inside if s <= start and end <= e]
        finer = [stage for stage in active if stage != "container"]
        best = min(finer, key=_RANK.__getitem__) if finer else "container" if active else "unattributed"
        pieces.append((best, start, end))
    finer_at = [place for place, piece in enumerate(pieces) if piece[0] in _RANK]
    named: list[Interval] = []
    for place, (stage, start, end) in enumerate(pieces):
        if stage == "container":
            if not finer_at:
                stage = "unattributed"
            elif place < finer_at[0]:
                stage = "ingress"
            elif place > finer_at[-1]:
                stage = "egress"
            else:
                stage = "relay"
        if named and named[-1][0] == stage and named[-1][2] == start:
            named[-1] = (stage, named[-1][1], end)
        else:
            named.append((stage, start, end))
    return named


def totals(charged: Sequence[Interval]) -> dict[str, int]:
    """Charged time by stage, in order of appearance."""
    result: dict[str, int] = {}
    for stage, start, end in charged:
        result[stage] = result.get(stage, 0) + end - start
    return result


def hidden(t0_ns: int, t1_ns: int, doings: Sequence[Interval], charged: Sequence[Interval]) -> dict[str, int]:
    """Time inside the window in which a work or wait went on while another stage was charged; only what is not zero."""
    exposed = totals(charged)
    result = {}
    for stage in PRECEDENCE:
        if stage in _OPAQUE:
            continue
        runs = _union([(max(s, t0_ns), min(e, t1_ns)) for name, s, e in doings if name == stage])
        covered = sum(end - start for start, end in runs) - exposed.get(stage, 0)
        if covered:
            result[stage] = covered
    return result


def _union(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(run for run in runs if run[0] < run[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def savings(t0_ns: int, t1_ns: int, doings: Sequence[Interval], charged: Sequence[Interval]) -> dict[str, int | None]:
    """How much sooner the first token would come if one stage took no time, for every stage that there is.

    A node is a run of one stage. One that began after others ended keeps its distance to the last of them. One that
    streams from an upstream run (it overlaps it and ends no earlier) ends no sooner than that run's new end plus its own
    tail, and no sooner than its own length after its inputs are ready.
    """
    if not hidden(t0_ns, t1_ns, doings, charged):  # one thing after the other: each is worth what it was charged
        return {stage: None if stage in _OPAQUE else ns for stage, ns in totals(charged).items()}
    by_activity = [stage for stage in PRECEDENCE if stage not in (*_OPAQUE, "router_queue", "route")]
    nodes: list[Interval] = []
    for stage in by_activity:
        runs = _union([(max(s, t0_ns), min(e, t1_ns)) for name, s, e in doings if name == stage])
        nodes += [(stage, start, end) for start, end in runs]
    nodes += [piece for piece in charged if piece[0] in _FLOW and piece[0] not in by_activity]
    stages = {stage for stage, _, _ in charged} | {stage for stage, _, _ in nodes}
    return {
        stage: None if stage in _OPAQUE else t1_ns - t0_ns - _length_without(stage, t0_ns, t1_ns, nodes)
        for stage in sorted(stages, key=(*PRECEDENCE, *_CONTAINERS, "unattributed").index)
    }


def _length_without(gone: str, t0_ns: int, t1_ns: int, nodes: Sequence[Interval]) -> int:
    """Length of the window if a stage took no time: each node asks its predecessors, at most once."""
    known: dict[Interval, tuple[int, int]] = {}

    def moved(node: Interval) -> tuple[int, int]:
        """New start and end of a node."""
        if node in known:
            return known[node]
        stage, start, end = node
        length = 0 if stage == gone else end - start
        before = [other for other in nodes if other is not node and other[2] <= start]
        ready = max((moved(other)[1] for other in before), default=t0_ns)
        begin = ready + start - max((other[2] for other in before), default=t0_ns)
        upstream = [
            other for other in nodes if _FLOW[other[0]] < _FLOW[stage] and start < other[2] <= end and other[1] < end
        ]
        if upstream:
            source = max(upstream, key=lambda other: (_FLOW[other[0]], other[2]))
            source_start, source_end = moved(source)
            if start >= source[1]:  # it began when its source was under way: its source's beginning frees it
                begin = max(ready, source_start)
            tail = 0 if stage == gone else end - source[2]
            known[node] = begin, max(source_end + tail, begin + length)
        else:
            known[node] = begin, begin + length
        return known[node]

    last_ns = max((end for _, _, end in nodes), default=t0_ns)
    return max((moved(node)[1] for node in nodes), default=t0_ns) + t1_ns - last_ns - t0_ns
