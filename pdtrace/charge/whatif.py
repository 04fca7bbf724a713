"""What-if: how much sooner would the first token come if one stage's work took no time?

Owns the forward pass over the stage graph (definitions section 2). Does not charge time (rule.py).

Exposed time says where the time went; saving says what fixing it buys. They differ when something else would have
held the request anyway:

    front end 0 - 120
      prefill  5 - 100                   exposed 95, saving 55: the transfer's own 50 ms
      handoff     60 - 110               would then be what the request waits for
      first token     110 - 120

Nodes are the merged runs of each stage inside the window. A node that began after others ended keeps its gap to the
last of those ends. One that streams (it overlaps an upstream node and ends no earlier) ends no sooner than that
node's new end plus its own tail after it, and no sooner than its own length after its earliest possible start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pdtrace.stages import STAGES

#: The stage graph, upstream first. Relay stands where the front end waits between the legs.
_ORDER: Final[dict[str, int]] = {
    stage: order
    for order, stage in enumerate(
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
#: Stages whose hidden part matters: their nodes are unions of activities. All other nodes are charged sections.
_BY_ACTIVITY: Final = frozenset(
    ("prefill", "recompute", "handoff", "first_token", "prefill_queue", "bootstrap", "decode_queue")
)
#: Nobody can make an unknown faster.
_NO_SAVING: Final = frozenset(("prefill_opaque", "decode_opaque", "unattributed"))
#: Above this many nodes the graph says nothing a person could act on, and the pass would be quadratic.
MOST_NODES: Final = 256


_Run = tuple[int, int, int, str]  # start_ns, place in the stage graph, end_ns, stage


@dataclass(slots=True)
class _Node:
    stage: str
    start_ns: int
    end_ns: int
    finished: list[int] = field(default_factory=list)  #: nodes that ended before this one began
    gap_ns: int = 0  #: to the last of their ends (to the window's start if there is none)
    streams_from: int = -1  #: upstream node that this one overlaps, -1 = none


def is_chain(sections: Collection[object], hidden: Collection[str]) -> bool:
    """Whether one thing followed the other: no stage of the graph has ``hidden`` time, so its runs are the sections."""
    return len(sections) <= MOST_NODES and _BY_ACTIVITY.isdisjoint(hidden)


def savings_of_chain(exposed_ns: Mapping[str, int]) -> dict[str, int | None]:
    """What ``savings`` gives for a chain: every stage saves the time that is charged to it."""
    return {stage: None if stage in _NO_SAVING else ns for stage, ns in exposed_ns.items()}


def savings(
    t0_ns: int,
    t1_ns: int,
    sections: Iterable[tuple[str, int, int]],
    activities: Iterable[tuple[str, int, int]],
) -> dict[str, int | None]:
    """Saving of every stage that is on the request's path or hidden behind it.

    Args:
        t0_ns, t1_ns: The TTFT window.
        sections: (stage, start_ns, end_ns) as charged.
        activities: (stage, start_ns, end_ns) on the same clock.

    Returns:
        Stage -> ns by which the first token would come sooner; None for opaque and unattributed time, and for every
        stage of a request with more than MOST_NODES runs.
    """
    sections = list(sections)
    runs = _runs(t0_ns, t1_ns, sections, activities)
    stages = {stage for stage, _, _ in sections} | {stage for _, _, _, stage in runs}
    result: dict[str, int | None] = dict.fromkeys(stage for stage in STAGES if stage in stages)
    if len(runs) > MOST_NODES:
        return result
    asked = stages - _NO_SAVING
    nodes = [_Node(stage, start_ns, end_ns) for start_ns, _, end_ns, stage in runs]
    order = _connect(t0_ns, nodes)
    for stage in asked:
        result[stage] = t1_ns - t0_ns - _first_token_after(t0_ns, t1_ns, nodes, order, without=stage)
    return result


def _runs(
    t0_ns: int, t1_ns: int, sections: Sequence[tuple[str, int, int]], activities: Iterable[tuple[str, int, int]]
) -> list[_Run]:
    """Merged runs of each stage, by start, then upstream first."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for stage, start_ns, end_ns in activities:
        if stage in _BY_ACTIVITY:
            start_ns, end_ns = max(start_ns, t0_ns), min(end_ns, t1_ns)
            if end_ns > start_ns:
                spans.setdefault(stage, []).append((start_ns, end_ns))
    for stage, start_ns, end_ns in sections:
        if stage in _ORDER and stage not in _BY_ACTIVITY:
            spans.setdefault(stage, []).append((start_ns, end_ns))
    return sorted([(start, _ORDER[stage], end, stage) for stage, runs in spans.items() for start, end in _union(runs)])


def _union(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if len(runs) < 2:
        return runs
    runs.sort()
    merged = [runs[0]]
    for start, end in runs[1:]:
        if start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _connect(t0_ns: int, nodes: list[_Node]) -> list[int]:
    """Find each node's predecessors; return an order in which every node comes after those it depends on."""
    for at, node in enumerate(nodes):
        node.finished = [i for i, other in enumerate(nodes) if i != at and other.end_ns <= node.start_ns]
        node.gap_ns = node.start_ns - max((nodes[i].end_ns for i in node.finished), default=t0_ns)
        upstream = [
            i
            for i, other in enumerate(nodes)
            if _ORDER[other.stage] < _ORDER[node.stage]
            and node.start_ns < other.end_ns <= node.end_ns
            and other.start_ns < node.end_ns
        ]
        node.streams_from = max(upstream, key=lambda i: (_ORDER[nodes[i].stage], nodes[i].end_ns), default=-1)
    # A predecessor never ends later than its successor, and upstream comes first where ends are equal.
    return sorted(range(len(nodes)), key=lambda i: (nodes[i].end_ns, _ORDER[nodes[i].stage], nodes[i].start_ns))


def _first_token_after(t0_ns: int, t1_ns: int, nodes: list[_Node], order: list[int], *, without: str) -> int:
    """Length of the window if every node of stage ``without`` took no time."""
    new_start = [0] * len(nodes)
    new_end = [0] * len(nodes)
    for i in order:
        node = nodes[i]
        length = 0 if node.stage == without else node.end_ns - node.start_ns
        ready = max((new_end[j] for j in node.finished), default=t0_ns)
        if node.streams_from < 0:
            new_start[i] = ready + node.gap_ns
            new_end[i] = new_start[i] + length
            continue
        source = nodes[node.streams_from]
        tail = 0 if node.stage == without else node.end_ns - source.end_ns
        began_first = node.start_ns < source.start_ns
        new_start[i] = ready + node.gap_ns if began_first else max(ready, new_start[node.streams_from])
        new_end[i] = max(new_end[node.streams_from] + tail, new_start[i] + length)
    last_ns = max((node.end_ns for node in nodes), default=t0_ns)
    return max(new_end, default=t0_ns) + t1_ns - last_ns - t0_ns
