"""Every scenario has one cause, and by the truth it is that stage which grows."""

from __future__ import annotations

import pytest

from pdtrace.simulate.causes import SlowLink
from pdtrace.simulate.pace import slowed
from pdtrace.simulate.reference import PRECEDENCE
from pdtrace.simulate.scenarios import SCENARIOS, ready
from pdtrace.simulate.story import Story
from pdtrace.simulate.truth import growth

MS = 1_000_000
NAMES = (
    "healthy", "decode_saturated", "prefill_burst", "slow_link", "stale_index", "load_only", "kv_leak",
    "recompute_storm", "p_restart", "clock_skew", "scale_up", "mixed_lengths",
)  # fmt: skip
CAUSED = [name for name in NAMES if name not in ("healthy", "clock_skew")]


def test_the_promised_scenarios_are_there() -> None:
    assert tuple(SCENARIOS) == NAMES
    for name, scenario in SCENARIOS.items():
        assert scenario.name == name
        assert bool(scenario.cause) == (name != "healthy")
        assert scenario.stage in (*PRECEDENCE, "")
        assert scenario.fix


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CAUSED)
def test_its_stage_grows_by_much_the_most(name: str, seed: int) -> None:
    run = ready(SCENARIOS[name], seed=seed)
    grown = growth(run.simulation.run(), run.onset_ns)
    ttft = grown.pop("ttft")
    mine = grown.pop(run.stage)
    assert ttft > 20 * MS
    assert mine > 0.6 * ttft
    assert mine > 2.5 * max(grown.values()), grown


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["healthy", "clock_skew"])
def test_nothing_grows_where_nothing_ails_the_requests(name: str, seed: int) -> None:
    run = ready(SCENARIOS[name], seed=seed, requests=1_000)
    grown = growth(run.simulation.run(), run.onset_ns)
    assert max(abs(ns) for ns in grown.values()) < 8 * MS, grown


@pytest.mark.parametrize("name", CAUSED)
def test_without_its_cause_nothing_grows(name: str) -> None:
    """Bursts, steps and long prompts are part of the cause; a scale-up's step stays, met by workers without delay."""
    run = ready(SCENARIOS[name], seed=2, with_cause=False)
    grown = growth(run.simulation.run(), run.onset_ns)
    caused = ready(SCENARIOS[name], seed=2)
    with_cause = growth(caused.simulation.run(), caused.onset_ns)
    assert abs(grown["ttft"]) < 15 * MS
    assert with_cause["ttft"] > 3 * abs(grown["ttft"])


def test_called_together_back_pressure_shows_on_p() -> None:
    run = ready(SCENARIOS["decode_saturated"], seed=1, mode="overlapped")
    assert run.stage == "bootstrap"
    grown = growth(run.simulation.run(), run.onset_ns)
    ttft = grown.pop("ttft")
    assert grown.pop("bootstrap") > 0.8 * ttft > 200 * MS


def _stories(name: str) -> tuple[int, list[Story]]:
    run = ready(SCENARIOS[name], seed=1)
    return run.onset_ns, list(run.simulation.run())


def _delivered(stories: list[Story]) -> tuple[int, int, int]:
    """Believed on the chosen worker, really there at that time, found by P: sums over first choices."""
    believed = real = found = 0
    for story in stories:
        if story.choices and story.cached_tokens is not None and story.attempts == 1:
            choice = story.choices[0]
            at = choice.candidates.index(choice.chosen)
            believed += choice.overlap_tokens[at]
            real += choice.truth[at]
            found += story.cached_tokens
    return believed, real, found


def test_a_stale_index_believes_in_what_is_gone() -> None:
    onset_ns, stories = _stories("stale_index")
    believed, real, found = _delivered([s for s in stories if s.arrival_ns < onset_ns])
    assert believed == real
    assert abs(found - real) < 0.1 * real
    believed, real, found = _delivered([s for s in stories if s.arrival_ns >= onset_ns])
    assert real < 0.6 * believed
    assert abs(found - real) < 0.1 * believed


def test_a_router_by_load_alone_believes_nothing() -> None:
    onset_ns, stories = _stories("load_only")
    late = [s for s in stories if s.arrival_ns >= onset_ns and s.choices]
    assert {choice.mode for s in late for choice in s.choices} == {"load_only"}
    assert _delivered(late)[0] == 0 < _delivered(late)[2]


def test_a_slow_link_is_slow_and_no_other() -> None:
    onset_ns, stories = _stories("slow_link")
    slow: list[int] = []
    others: list[int] = []
    for story in stories:
        for doing in story.doings:
            if doing.stage == "handoff" and doing.start_ns >= onset_ns and not doing.failed:
                through = doing.detail["src"] in ("p0", "p1") and doing.detail["dst"] in ("d1", "d2")
                (slow if through else others).append(doing.end_ns - doing.start_ns)
                assert doing.detail["path"] == ("tcp" if through else doing.detail["path"])
    assert sum(slow) / len(slow) > 8 * sum(others) / len(others)


def test_a_leak_holds_until_the_lease_ends() -> None:
    onset_ns, stories = _stories("kv_leak")
    held = [d for s in stories for d in s.doings if d.stage == "kv_hold" and d.start_ns > onset_ns]
    leaked = [d for d in held if d.worker == "p0" and d.detail["released_by"] == "timeout"]
    assert len(leaked) > 30
    assert {d.end_ns - d.start_ns for d in leaked} == {20_000_000_000}
    assert all(d.end_ns - d.start_ns < 10_000_000_000 for d in held if d.worker != "p0")


def test_a_drifting_clock_is_seen_in_stamps_alone() -> None:
    plain, skewed = ready(SCENARIOS["healthy"], seed=3), ready(SCENARIOS["clock_skew"], seed=3)
    assert list(plain.simulation.run()) == list(skewed.simulation.run())
    facts, onset_ns = skewed.simulation.facts, skewed.onset_ns
    assert facts.stamp("node-0", onset_ns - 5) == onset_ns - 5
    assert facts.stamp("node-0", onset_ns + 10**9) == onset_ns + 10**9 + 10**6
    assert facts.stamp("node-1", onset_ns + 10**9) == onset_ns + 10**9


def test_a_storm_computes_again_on_d() -> None:
    onset_ns, stories = _stories("recompute_storm")
    late = [s for s in stories if s.arrival_ns > onset_ns and s.outcome in ("ok", "ok_fallback")]
    share = sum(s.outcome == "ok_fallback" for s in late) / len(late)
    assert share == pytest.approx(0.4, abs=0.12)
    assert all(
        s.outcome == "ok" for s in stories if s.end_ns and s.end_ns < onset_ns and s.http_status == 200 and not s.error
    )
    recomputed = {d.worker for s in stories for d in s.doings if d.stage == "recompute"}
    assert recomputed <= {"d0", "d1", "d2"}


@pytest.mark.parametrize("rate_per_s", [2.0, 150.0])
@pytest.mark.parametrize("name", CAUSED)
def test_at_another_rate_it_stays_itself(name: str, rate_per_s: float) -> None:
    """The cluster's speed goes with the rate: the same story, shorter or longer."""
    own = ready(SCENARIOS[name], seed=1)
    other = ready(SCENARIOS[name], seed=1, rate_per_s=rate_per_s)
    factor = SCENARIOS[name].workload.rate_per_s / rate_per_s
    assert other.onset_ns - other.start_ns == pytest.approx((own.onset_ns - own.start_ns) * factor, rel=1e-6)
    grown = growth(other.simulation.run(), other.onset_ns)
    ttft = grown.pop("ttft")
    assert ttft > 20 * MS * factor
    mine = grown.pop(other.stage)
    assert mine > 0.6 * ttft
    assert mine > 2.5 * max(grown.values()), grown


def test_slowed_by_hand() -> None:
    """Times twice as long, speeds half; counts, shares, sizes and clocks as they were."""
    workload = slowed(SCENARIOS["prefill_burst"].workload, 2.0)
    assert (workload.rate_per_s, workload.patience_s, workload.groups) == (10.0, 3.0, 24)
    cluster = slowed(SCENARIOS["kv_leak"].cluster, 2.0)
    assert (cluster.costs.prefill_step_ns, cluster.costs.prefill_ns_per_token) == (8 * MS, 120_000)
    assert cluster.costs.decode_ns_per_sequence == 300_000
    assert cluster.costs.state_bytes_per_token == (("kv", 160_000),)
    assert (cluster.links.nic_gb_per_s, cluster.links.latency_ns) == (12.5, 40_000)
    assert (cluster.policy.lease_ns, cluster.policy.timeout_ns) == (40_000 * MS, 0)
    assert cluster.workers == SCENARIOS["kv_leak"].cluster.workers
    assert slowed(SCENARIOS["slow_link"].causes[0], 2.0) == SlowLink("node-0", "node-2", 1.5)
