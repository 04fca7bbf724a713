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
    move_failed: str = ""  #: why the state did not come in its attempt; "" also if D computed the prompt instead
    peer_lost: bool = False  #: it was given up because the other side's worker went
    cut: bool = False  #: the front end gave the request up while the worker had it
    open: bool = False  #: the worker still has it
    left_ns: int = 0  #: when the front end knew that the call was over
    unreached: bool = False  #: the call went nowhere: no worker was there
    lost: bool = False  #: the worker itself went, and took with it what it would have told

    @property
    def failed(self) -> str:
        """What its worker failed at, "" if at nothing. A move of state that fails, fails on D."""
        if self.unreached:
            return f"the {self.role} worker cannot be reached"
        if self.peer_lost:
            return ""
        own = next((doing.failed for doing in self.doings if doing.failed and doing.stage != "handoff"), "")
        return own or (self.move_failed if self.role == "decode" else "")

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
    _call_together(visits, story, cluster)
    visits.sort(key=lambda visit: (visit.start_ns, visit.role != "prefill", visit.worker))
    for visit in visits:
        visit.called_ns = _called_ns(visit, visits, story)
        visit.choice = _choice(visit, story)
    _mark_lost(visits, story)
    for visit in visits:
        visit.move_failed = _move_failed([other for other in visits if other.attempt == visit.attempt])
    for visit in visits:
        later = [doing.start_ns for doing in routing_of(story) if doing.attempt > visit.attempt]
        noticed = min(later, default=story.end_ns or visit.end_ns)
        visit.left_ns = max(visit.end_ns, noticed) if visit.lost else visit.answered_ns
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
    if story.outcome in ("cancelled", "timed_out") and attempt + 1 == story.attempts and story.end_ns is not None:
        visit.cut = end_ns == story.end_ns or (role != "prefill" and visit.first("decode") is None)
        if visit.cut:  # the worker had it to the end, though of a step that nobody waited for nothing is told
            visit.end_ns = visit.answered_ns = story.end_ns
    computed = role == "prefill" and visit.first("prefill", "recompute") is not None
    visit.open = story.end_ns is None and attempt + 1 == story.attempts and not computed
    return visit


def _call_together(visits: list[Visit], story: Story, cluster: ClusterFacts) -> None:
    """A D that was called together with P has had the request as long as P, though nothing may have happened there."""
    for choice in story.choices:
        if choice.stage != "decode":
            continue
        inside = [visit for visit in visits if visit.attempt == choice.attempt]
        sides = {visit.role: visit for visit in inside}
        prefill, decode = sides.get("prefill"), sides.get("decode")
        together = any(o.time_ns == choice.time_ns and o.stage == "prefill" for o in story.choices)
        if prefill is None or prefill.unreached or not together:
            continue
        if decode is None:
            end_ns = max([prefill.start_ns, *(d.end_ns for d in prefill.all("handoff"))])
            if any("restarted" in doing.failed for doing in prefill.doings):
                end_ns = prefill.end_ns
            elif story.outcome in ("cancelled", "timed_out") and choice.attempt + 1 == story.attempts:
                end_ns = story.end_ns or end_ns
            host = cluster.workers[choice.chosen].host
            decode = Visit(choice.chosen, "decode", host, choice.attempt, end_ns, end_ns, end_ns, end_ns)
            decode.cut = story.outcome in ("cancelled", "timed_out") and end_ns == story.end_ns
            decode.open = story.end_ns is None and choice.attempt + 1 == story.attempts
            visits.append(decode)
        decode.start_ns = min(decode.start_ns, prefill.start_ns)


def _move_failed(attempt: list[Visit]) -> str:
    if any(visit.lost or visit.first("recompute", "first_token") for visit in attempt if visit.role == "decode"):
        return ""
    return next((doing.failed for visit in attempt for doing in visit.all("handoff") if doing.failed), "")


def _mark_lost(visits: list[Visit], story: Story) -> None:
    """An attempt ends only where a worker went: the one its failure names, else the one that had it last."""
    for visit in visits:
        named = f"worker {visit.worker} restarted"
        telling = visit.doings or [d for other in visits if other.attempt == visit.attempt for d in other.doings]
        visit.lost = visit.unreached or any(named in doing.failed for doing in telling)
    ended = story.attempts if story.outcome in ("failed_prefill", "failed_decode") else story.attempts - 1
    for attempt in range(ended):
        inside = [visit for visit in visits if visit.attempt == attempt]
        if inside and not any(visit.lost for visit in inside):
            max(inside, key=lambda visit: visit.end_ns).lost = True
        for visit in inside:
            if not visit.lost and (not visit.doings or any(doing.failed for doing in visit.doings)):
                visit.peer_lost = visit.cut = True


def _unreached(story: Story, cluster: ClusterFacts, reached: Collection[tuple[int, str]]) -> Iterator[Visit]:
    """Calls of attempts that were given up because nobody answered: one an attempt, the other call came to nothing."""
    decode_first = story.outcome == "failed_decode"
    told: set[int] = set()
    for choice in sorted(story.choices, key=lambda choice: (choice.stage == "decode") != decode_first):
        worker, attempt = choice.chosen, choice.attempt
        if attempt in told:
            continue
        last = attempt + 1 == story.attempts
        if (attempt, worker) in reached or (last and not story.outcome.startswith("failed")):
            continue
        others = [other for other in story.choices if other.attempt == attempt and other is not choice]
        if any(
            o.time_ns > choice.time_ns or (attempt, o.chosen) in reached for o in others if o.time_ns >= choice.time_ns
        ):
            continue  # answered, or called together with one that was there
        facts = cluster.workers[worker]
        role: Role = "decode" if facts.role == "decode" else "aggregated" if facts.role == "aggregated" else "prefill"
        if last and role != "aggregated" and not story.outcome.endswith(role):
            continue
        later = [doing.start_ns for doing in routing_of(story) if doing.attempt > attempt]
        end_ns = min(later, default=story.end_ns or choice.time_ns)
        visit = Visit(worker, role, facts.host, attempt, choice.time_ns, choice.time_ns, end_ns, end_ns)
        visit.unreached = True
        told.add(attempt)
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
