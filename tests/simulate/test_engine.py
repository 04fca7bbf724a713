"""What must hold for every scenario, seed and cluster, whatever happens in it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.outcomes import OUTCOMES
from pdtrace.simulate.arrivals import Workload
from pdtrace.simulate.causes import Cause, FailTransfers, LeakHolds, Restart
from pdtrace.simulate.cluster import MS, SECOND, Cluster, Links, Policy, Worker, base_cluster
from pdtrace.simulate.engine import START_NS, Simulation
from pdtrace.simulate.faults import plan_cause
from pdtrace.simulate.loop import Loop
from pdtrace.simulate.prefix_cache import PrefixCache
from pdtrace.simulate.scenarios import SCENARIOS, ready
from pdtrace.simulate.story import Story
from pdtrace.simulate.truth import answers

#: Stages of one attempt in the order in which they must begin.
_ORDER = ("prefill", "recompute", "first_token", "decode")


def check(story: Story) -> None:
    """Intervals are causal, sections tile the window."""
    front = story.doings[0]
    assert (front.stage, front.start_ns) == ("container", story.arrival_ns)
    assert story.outcome in OUTCOMES
    assert story.end_ns == front.end_ns
    for doing in story.doings:
        assert doing.end_ns >= doing.start_ns >= story.arrival_ns, doing
        assert 0 <= doing.attempt < story.attempts
        if doing.stage != "kv_hold":
            assert doing.end_ns <= story.end_ns, doing
    for earlier, later in pairwise(sorted({doing.attempt for doing in story.doings[1:]})):
        first_end = max(d.end_ns for d in story.doings[1:] if d.attempt == earlier and d.stage != "kv_hold")
        assert first_end <= min(d.start_ns for d in story.doings[1:] if d.attempt == later)
    for attempt in range(story.attempts):
        of = {stage: [d for d in story.doings if d.stage == stage and d.attempt == attempt] for stage in _ORDER}
        starts = [d.start_ns for stage in _ORDER for d in of[stage]]
        assert starts == sorted(starts)
        handoffs = [d for d in story.doings if d.stage == "handoff" and d.attempt == attempt]
        prompts = of["prefill"] + of["recompute"]
        if handoffs:
            assert prompts
            assert min(d.start_ns for d in handoffs) >= prompts[0].start_ns
            if story.mode == "sequential":
                assert min(d.start_ns for d in handoffs) >= prompts[0].end_ns
        for first in of["first_token"]:
            assert max(d.end_ns for d in handoffs + prompts) <= first.start_ns
    assert story.token_times_ns == sorted(story.token_times_ns)
    assert len(story.token_times_ns) == story.output_tokens
    assert story.first_token_ns == (story.token_times_ns[0] if story.token_times_ns else None)
    if story.outcome in ("ok", "ok_fallback"):
        assert story.token_times_ns[-1] == story.end_ns
    if story.cached_tokens is not None:
        assert 0 <= story.cached_tokens < story.input_tokens + story.output_tokens
    told = answers(story)
    window = told["window"] or ([story.arrival_ns, story.end_ns] if story.end_ns is not None else None)
    sections = told["sections"] or told["sections_to_end"]
    assert window is not None
    assert [sections[0][1], sections[-1][2]] == window
    assert all(a[2] == b[1] and a[0] != b[0] for a, b in pairwise(sections))
    assert sum(end - start for _, start, end in sections) == window[1] - window[0]


def check_cluster(simulation: Simulation) -> None:
    """Nothing was used beyond capacity, nothing is left behind."""
    for prefill in simulation.prefill_workers.values():
        assert prefill.cache.peak <= prefill.shape.blocks
        assert prefill.cache.used == prefill.cache.idle  # nobody uses any of them
        assert not prefill.holding
        assert prefill.waiting_count == 0
    for decode in simulation.decode_workers.values():
        assert decode.peak <= decode.shape.blocks
        assert decode.used == 0
        assert not decode.present
    assert all(router.open == 0 for router in simulation.routers)
    assert all(count == 0 for router in simulation.routers for count in router._prompt_tokens.values())
    assert all(count == 0 for router in simulation.routers for count in router._requests.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_causal_complete_and_within_capacity(name: str, seed: int) -> None:
    run = ready(SCENARIOS[name], seed=seed, requests=200, mode="overlapped" if seed == 3 else "")
    stories = list(run.simulation.run())
    assert sorted(story.number for story in stories) == list(range(200))
    assert len({story.request_id for story in stories}) == 200
    for story in stories:
        check(story)
    check_cluster(run.simulation)


def test_same_seed_same_stories_and_another_seed_others() -> None:
    def told(seed: int) -> list[Story]:
        return list(ready(SCENARIOS["p_restart"], seed=seed, requests=150).simulation.run())

    assert told(5) == told(5)
    assert told(5) != told(6)


def test_stories_come_in_order_of_their_last_end() -> None:
    ends = [max(d.end_ns for d in story.doings) for story in ready(SCENARIOS["kv_leak"], seed=1).simulation.run()]
    assert ends == sorted(ends)


def test_taking_the_cause_away_changes_nothing_before_it_and_no_arrival() -> None:
    for name in ("prefill_burst", "slow_link", "mixed_lengths", "p_restart"):
        with_cause = ready(SCENARIOS[name], seed=4, requests=120)
        without = ready(SCENARIOS[name], seed=4, requests=120, with_cause=False)
        one = {story.number: story for story in with_cause.simulation.run()}
        other = {story.number: story for story in without.simulation.run()}
        early = [n for n, story in one.items() if max(d.end_ns for d in story.doings) < with_cause.onset_ns]
        assert len(early) > 20
        assert all(one[number] == other[number] for number in early), name
        if name not in ("prefill_burst", "mixed_lengths"):  # there the cause is in what is asked
            assert all(one[n].arrival_ns == other[n].arrival_ns for n in one)
            assert all(one[n].input_tokens == other[n].input_tokens for n in one)


causes = st.lists(
    st.sampled_from(
        [
            Restart("p0", down_ns=SECOND // 4, every_ns=SECOND),
            Restart("d0", down_ns=SECOND // 4, every_ns=SECOND),
            Restart("p1", down_ns=0),
            FailTransfers(0.5),
            LeakHolds("p1"),
        ]
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1_000),
    mode=st.sampled_from(["sequential", "overlapped"]),
    streaming=st.sampled_from(["after", "chunked", "layerwise"]),
    lost=st.sampled_from(["recompute", "fail"]),
    knowledge=st.sampled_from(["events", "predicted", "load_only", "round_robin"]),
    sharing=st.sampled_from(["fair", "fifo"]),
    rate=st.sampled_from([5.0, 60.0]),
    p_blocks=st.sampled_from([60, 400]),
    d_blocks=st.sampled_from([60, 400]),
    short=st.sampled_from([0, 500]),
    lease_ms=st.sampled_from([50, 5_000]),
    timeout_ms=st.sampled_from([0, 800]),
    causes=causes,
)
def test_any_cluster_keeps_its_books(
    seed: int,
    mode: str,
    streaming: str,
    lost: str,
    knowledge: str,
    sharing: str,
    rate: float,
    p_blocks: int,
    d_blocks: int,
    short: int,
    lease_ms: int,
    timeout_ms: int,
    causes: list[Cause],
) -> None:
    workers = (
        Worker("p0", "prefill", "a", blocks=p_blocks),
        Worker("p1", "prefill", "b", blocks=p_blocks, tp=1),
        Worker("d0", "decode", "b", blocks=d_blocks, most_running=6),
        Worker("d1", "decode", "c", blocks=d_blocks, tp=1),
    )
    shape = Cluster(
        workers=workers,
        routers=(("router-0", "edge-0"), ("router-1", "edge-1")),
        links=Links(nic_gb_per_s=2.0, sharing=sharing),
        policy=Policy(
            mode=mode,
            streaming=streaming,
            knowledge=knowledge,
            on_lost_state=lost,
            lease_ns=lease_ms * MS,
            timeout_ns=timeout_ms * MS,
            prefill_on_decode_below=short,
            most_open=40,
            most_attempts=3,
        ),
    )
    workload = Workload(rate_per_s=rate, cancel_share=0.2, patience_s=0.5, groups=4)
    simulation = Simulation(shape, workload, seed=seed, requests=40, onset_ns=START_NS)
    for place, cause in enumerate(causes):
        plan_cause(simulation, cause, START_NS + (place + 1) * SECOND // 5)
    stories = list(simulation.run())
    assert sorted(story.number for story in stories) == list(range(40))
    for story in stories:
        check(story)
    check_cluster(simulation)


def test_aggregated_keeps_its_books() -> None:
    shape = base_cluster(
        workers=tuple(Worker(f"w{i}", "aggregated", f"node-{i}", blocks=300) for i in range(2)),
        policy=Policy(mode="aggregated"),
    )
    simulation = Simulation(shape, Workload(rate_per_s=8.0, cancel_share=0.2), seed=1, requests=150, onset_ns=START_NS)
    plan_cause(simulation, Restart("w0", down_ns=SECOND), START_NS + 4 * SECOND)
    stories = list(simulation.run())
    assert len(stories) == 150
    assert {"ok", "ok_fallback", "cancelled"} <= {story.outcome for story in stories}
    for story in stories:
        check(story)
    check_cluster(simulation)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans(), st.integers(0, 2)), max_size=30),
    st.integers(5, 20),
)
def test_prefix_cache_against_a_naive_one(actions: list[tuple[int, int, bool, int]], capacity: int) -> None:
    """A prompt in use is found whole; memory never overflows; releasing everything leaves only idle blocks."""
    cache = PrefixCache(capacity)
    running: list[tuple[list[int], int]] = []
    for group, length, tail, leave in actions:
        prompt = [group * 100 + i for i in range(length)]
        blocks = length + tail
        found = cache.begin(prompt, blocks, length)
        if found is not None:
            cache.fill(prompt, found)
            running.append((prompt, blocks))
        else:
            in_use = {block for used, _ in running for block in used}
            private = sum(blocks - len(used) for used, blocks in running)
            assert len(in_use) + private + blocks - cache.match(prompt) > capacity - _pinned_twice(
                cache, prompt, in_use
            )
        for used, _ in running:
            assert cache.match(used) == len(used)
        assert cache.used <= capacity
        for _ in range(min(leave, len(running))):
            cache.release(*running.pop(0))
    for used, blocks in running:
        cache.release(used, blocks)
    assert cache.used == cache.idle


def _pinned_twice(cache: PrefixCache, prompt: list[int], in_use: set[int]) -> int:
    """Found blocks that nobody uses: they would be pinned by the prompt and are not free for its other blocks."""
    return len([block for block in prompt[: cache.match(prompt)] if block not in in_use])


def test_an_abandoned_prompt_gives_everything_back() -> None:
    cache = PrefixCache(10)
    assert cache.begin([1, 2, 3], 4, 3) == 0
    cache.abandon([1, 2, 3], 4, 0)
    assert (cache.used, cache.idle) == (0, 0)
    assert cache.begin([1, 2, 3], 4, 3) == 0
    cache.fill([1, 2, 3], 0)
    cache.release([1, 2, 3], 4)
    assert cache.begin([1, 2, 9], 3, 3) == 2
    cache.abandon([1, 2, 9], 3, 2)
    assert (cache.used, cache.idle) == (3, 3)


def test_events_in_order_and_never_in_the_past() -> None:
    class Somebody:
        generation = 0

    told: list[str] = []
    loop, one, other = Loop(100), Somebody(), Somebody()
    loop.at(120, lambda _subject, now: told.append(f"b {now}"), one)
    loop.at(110, lambda _subject, now: told.append(f"a {now}"), one)
    loop.at(120, lambda _subject, now: told.append(f"c {now}"), one)
    loop.at(115, lambda _subject, now: told.append(f"never {now}"), other)
    other.generation += 1
    while loop.step():
        pass
    assert told == ["a 110", "b 120", "c 120"]
    with pytest.raises(ValueError, match="planned for 119 ns, but it is 120 ns already"):
        loop.at(119, lambda _subject, _now: None, one)


def test_workers_lives_are_told() -> None:
    changes: list[tuple[str, str]] = []
    run = ready(
        SCENARIOS["scale_up"], seed=1, on_worker_change=lambda change: changes.append((change.worker, change.state))
    )
    list(run.simulation.run())
    assert changes[:4] == [("p0", "ready"), ("d0", "ready"), ("d1", "ready"), ("d2", "ready")]
    assert changes[4:6] == [("p1", "starting"), ("p1", "ready")]
    served = replace(run.scenario).cluster.workers[1].name
    assert served == "p1"
