"""A story as engines and their callers see it: visits of a request to workers, and the calls that led to them.

Owns the cut of a story into visits. Knows no dialect.

    front end  |--------------------------------------------------|
      route        |-|                     |-|
      call             |---- to P -------|     |---- to D ----|       a call leaves when the choice before it is made
        visit            |--------------|        |-----------|        a visit is everything one worker did in one attempt
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from pdtrace.simulate.story import CONTAINER, KV_HOLD, ClusterFacts, Doing, RouteChoice, Story

Role = Literal["prefill", "decode", "aggregated"]
_ROUTING = ("route", "router_queue")


@dataclass(slots=True)
class Visit:
    """Everything one worker did for one attempt of one request, in true time."""

    worker: str
    role: Role
    host: str
    attempt: int
    called_ns: int  #: when the front end called it
    start_ns: int
    end_ns: int  #: its last doing's
    answered_ns: int  #: when it answered its caller: a P called first answers before D pulls from it
    doings: list[Doing] = field(default_factory=list)  #: by start; holds of KV are not among them
    choice: RouteChoice | None = None  #: the decision that led here
    cut: bool = False  #: the front end gave the request up while the worker had it
    open: bool = False  #: the worker still has it
    unreached: bool = False  #: the call went nowhere: no worker was there
    lost: bool = False  #: the worker itself went, and took with it what it would have told

    @property
    def failed(self) -> str:
        """What went wrong in it, "" if nothing did."""
        if self.unreached:
            return f"the {self.role} worker cannot be reached"
        return next((doing.failed for doing in self.doings if doing.failed), "")

    def first(self, *stages: str) -> Doing | None:
        """The first doing of one of ``stages``."""
        return next((doing for doing in self.doings if doing.stage in stages), None)

    def all(self, *stages: str) -> list[Doing]:
        """Doings of ``stages``, by start."""
        return [doing for doing in self.doings if doing.stage in stages]


def visits_of(story: Story, cluster: ClusterFacts) -> list[Visit]:
    """The visits of a story, by the time they were called."""
    doings: dict[tuple[int, str], list[Doing]] = {}
    for doing in story.doings:
        if doing.stage not in _ROUTING and doing.stage not in (CONTAINER, KV_HOLD):
            doings.setdefault((doing.attempt, doing.worker), []).append(doing)
    visits = [_visit(story, cluster, worker, attempt, inside) for (attempt, worker), inside in doings.items()]
    visits += _unreached(story, cluster, doings.keys())
    visits.sort(key=lambda visit: (visit.start_ns, visit.role != "prefill", visit.worker))
    for visit in visits:
        visit.called_ns = _called_ns(visit, visits, story)
        visit.choice = _choice(visit, story)
    _mark_lost(visits, story)
    return visits


def routing_of(story: Story) -> list[Doing]:
    """Doings of the router, by start."""
    return sorted((d for d in story.doings if d.stage in _ROUTING), key=lambda d: (d.start_ns, d.end_ns))


def _visit(story: Story, cluster: ClusterFacts, worker: str, attempt: int, doings: list[Doing]) -> Visit:
    doings.sort(key=lambda doing: (doing.start_ns, doing.end_ns))
    facts = cluster.workers[worker]
    role: Role = "decode" if facts.role == "decode" else "aggregated" if facts.role == "aggregated" else "prefill"
    start_ns = doings[0].start_ns
    end_ns = answered_ns = max(d.end_ns for d in doings)
    if role == "prefill" and story.mode == "sequential":
        answered_ns = max((d.end_ns for d in doings if d.stage != "handoff"), default=end_ns)
    visit = Visit(worker, role, facts.host, attempt, start_ns, start_ns, end_ns, answered_ns, doings)
    visit.cut = story.outcome in ("cancelled", "timed_out") and end_ns == story.end_ns
    computed = role == "prefill" and visit.first("prefill", "recompute") is not None
    visit.open = story.end_ns is None and attempt + 1 == story.attempts and not computed
    return visit


def _mark_lost(visits: list[Visit], story: Story) -> None:
    """An attempt ends only where a worker went: the one its failure names, else the one that had it last."""
    for visit in visits:
        visit.lost = visit.unreached or f"worker {visit.worker} restarted" in visit.failed
    for attempt in range(story.attempts - 1):
        inside = [visit for visit in visits if visit.attempt == attempt]
        if inside and not any(visit.lost for visit in inside):
            max(inside, key=lambda visit: visit.end_ns).lost = True


def _unreached(story: Story, cluster: ClusterFacts, reached: Collection[tuple[int, str]]) -> Iterator[Visit]:
    """Calls of attempts that were given up because nobody answered."""
    for choice in story.choices:
        worker, attempt = choice.chosen, choice.attempt
        last = attempt + 1 == story.attempts
        if (attempt, worker) in reached or (last and not story.outcome.startswith("failed")):
            continue
        if any(other.attempt == attempt and other.time_ns > choice.time_ns for other in story.choices):
            continue
        facts = cluster.workers[worker]
        role: Role = "decode" if facts.role == "decode" else "aggregated" if facts.role == "aggregated" else "prefill"
        later = [doing.start_ns for doing in routing_of(story) if doing.attempt > attempt]
        end_ns = min(later, default=story.end_ns or choice.time_ns)
        visit = Visit(worker, role, facts.host, attempt, choice.time_ns, choice.time_ns, end_ns, end_ns)
        visit.unreached = True
        yield visit


def _called_ns(visit: Visit, visits: list[Visit], story: Story) -> int:
    """The end of the last routing before the visit; a worker called after another answered was not called before."""
    routed = [d.end_ns for d in routing_of(story) if d.end_ns <= visit.start_ns and d.attempt <= visit.attempt]
    answered = [
        other.answered_ns
        for other in visits
        if other.role == "prefill" and visit.role == "decode" and other.answered_ns <= visit.start_ns
    ]
    return max([story.arrival_ns, *routed, *answered])


def _choice(visit: Visit, story: Story) -> RouteChoice | None:
    made = [
        choice
        for choice in story.choices
        if choice.chosen == visit.worker and choice.attempt == visit.attempt and choice.time_ns <= visit.start_ns
    ]
    return made[-1] if made else None
