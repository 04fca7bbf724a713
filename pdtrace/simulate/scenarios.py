"""Scenarios: a cluster that is healthy for its first half, then one documented cause sets in.

Owns which cause, what it must do to which stage, and what would fix it. How things then go is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from pdtrace.simulate.arrivals import Bursts, Workload, mean_rate_per_s
from pdtrace.simulate.causes import (
    Cause,
    ChangeKnowledge,
    Drain,
    FailTransfers,
    LeakHolds,
    LoseRemovals,
    Restart,
    SlowLink,
)
from pdtrace.simulate.cluster import SECOND, Autoscale, Cluster, Policy, Worker, base_cluster
from pdtrace.simulate.engine import START_NS, Simulation
from pdtrace.simulate.faults import plan_autoscale, plan_cause
from pdtrace.simulate.pace import slowed
from pdtrace.simulate.story import HostFacts, WorkerChange


@dataclass(frozen=True, slots=True)
class Scenario:
    """One cause, and everything else as it would be without it."""

    name: str
    cause: str
    """In words; empty if nothing goes wrong."""
    stage: str
    """The stage that grows, by much the most, where P and D are called one after the other; empty: none does."""
    affected: str
    """Worker id, ``source>destination`` hosts of a link, or host."""
    fix: str
    """In words."""
    requests: int = 400
    """How many show it well."""
    cluster: Cluster = field(default_factory=base_cluster)
    workload: Workload = field(default_factory=Workload)
    causes: tuple[Cause, ...] = ()
    asked: Callable[[Workload], Workload] | None = None
    """The cause, where it is in what is asked: the workload with it."""
    drift_ppm: tuple[tuple[str, float], ...] = ()
    """The cause, where it is in clocks: hosts and their drift from the onset on."""
    scale: Autoscale | None = None
    """The autoscaler, where the cause is how late it helps; without the cause it takes no time."""

    def stage_in(self, mode: str) -> str:
        """The stage that grows: where both are called together, D's queue is felt on P, as back-pressure."""
        return "bootstrap" if mode == "overlapped" and self.stage == "decode_queue" else self.stage


@dataclass(frozen=True, slots=True)
class Run:
    """A scenario made ready to be played."""

    scenario: Scenario
    simulation: Simulation
    seed: int
    requests: int
    rate_per_s: float
    start_ns: int
    onset_ns: int
    """True time at which the cause sets in."""
    stage: str
    """The stage that grows; empty: none does."""


def ready(
    scenario: Scenario,
    *,
    seed: int,
    requests: int | None = None,
    rate_per_s: float | None = None,
    arrivals: str = "",
    mode: str = "",
    start_ns: int = START_NS,
    run: str = "",
    with_cause: bool = True,
    on_worker_change: Callable[[WorkerChange], None] = lambda _change: None,
) -> Run:
    """A scenario, ready to be played once.

    Args:
        scenario: One of ``SCENARIOS``, or your own.
        seed: Same seed, same stories.
        requests: How many; None: the scenario's own number.
        rate_per_s: Arrivals a second; None: the scenario's own, or the recording's. The cluster is as much faster or
            slower as the rate is higher or lower than the scenario's, so that the scenario stays itself; a recording's
            rate leaves the cluster as it is.
        arrivals: ``mooncake`` or ``azure`` instead of the scenario's distributions.
        mode: ``sequential`` or ``overlapped`` instead of the scenario's own way of calling P and D.
        start_ns: True time of the start.
        run: Label of the run; request ids begin with it.
        with_cause: False: the same requests in the same cluster, and nothing goes wrong.
        on_worker_change: Called when a worker comes to live or ceases to.
    """
    count = scenario.requests if requests is None else requests
    workload = scenario.workload
    if arrivals:
        workload = replace(workload, file=arrivals, rate_per_s=0.0)
    pace = 1.0
    if rate_per_s is not None and arrivals:
        workload = replace(workload, rate_per_s=rate_per_s)
    elif rate_per_s is not None:
        pace = workload.rate_per_s / rate_per_s
    rate = rate_per_s or mean_rate_per_s(workload)
    half_ns = round(count / 2 / rate * SECOND)
    cluster = scenario.cluster
    if mode:
        cluster = replace(cluster, policy=replace(cluster.policy, mode=mode))
    if with_cause:
        workload = scenario.asked(workload) if scenario.asked else workload
        cluster = replace(
            cluster,
            clocks=cluster.clocks + tuple((host, HostFacts(0, ppm, half_ns)) for host, ppm in scenario.drift_ppm),
        )
    simulation = Simulation(
        slowed(cluster, pace),
        slowed(workload, pace),
        seed=seed,
        requests=count,
        onset_ns=start_ns + half_ns,
        start_ns=start_ns,
        run=run,
        on_worker_change=on_worker_change,
    )
    if with_cause:
        for cause in scenario.causes:
            plan_cause(simulation, slowed(cause, pace), start_ns + half_ns)
    if scenario.scale is not None:
        scale = scenario.scale if with_cause else replace(scenario.scale, start_up_ns=0)
        plan_autoscale(simulation, slowed(scale, pace), start_ns)
    stage = scenario.stage_in(cluster.policy.mode)
    return Run(scenario, simulation, seed, count, rate, start_ns, start_ns + half_ns, stage)


# Prompts whose beginnings fill the caches, in a cluster with time to spare: a lost hit costs prefill and nothing else.
_TIGHT: Final = base_cluster(
    workers=tuple(
        replace(worker, blocks=1100) if worker.role == "prefill" else worker for worker in base_cluster().workers
    )
)
_MANY_BEGINNINGS: Final = Workload(rate_per_s=5.0, groups=60, group_tokens=2048)


def _with(cluster: Cluster, role: str, **changed: int) -> Cluster:
    """The cluster with every worker of a role changed."""
    workers = tuple(replace(w, **changed) if w.role == role else w for w in cluster.workers)  # type: ignore[arg-type]
    return replace(cluster, workers=workers)


def _only(cluster: Cluster, role: str, *names: str) -> Cluster:
    """The cluster with these workers of a role alone."""
    return replace(cluster, workers=tuple(w for w in cluster.workers if w.role != role or w.name in names))


SCENARIOS: Final[dict[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Scenario("healthy", "", "", "", "nothing to fix"),
        Scenario(
            "decode_saturated",
            "decode workers d1 and d2 are drained: d0 alone has too few slots",
            "decode_queue",
            "d0",
            "give the decode pool its workers back",
            cluster=_with(base_cluster(), "decode", most_running=12),
            causes=(Drain(("d1", "d2")),),
        ),
        Scenario(
            "prefill_burst",
            "arrivals come in bursts of 8 times the rate: a second in every five",
            "prefill_queue",
            "prefill",
            "admit bursts more slowly, or more prefill workers",
            requests=800,
            cluster=_with(base_cluster(), "prefill", token_budget=1024),
            asked=lambda workload: replace(workload, bursts=Bursts(factor=8.0)),
        ),
        Scenario(
            "slow_link",
            "the link from node-0 to node-2 fell back from RDMA to TCP: 3 GB/s instead of 25",
            "handoff",
            "node-0>node-2",
            "bring RDMA back on that link",
            causes=(SlowLink("node-0", "node-2", 3.0),),
        ),
        Scenario(
            "stale_index",
            "the router rebuilt its index from events without removals: it sends prompts to workers that have dropped them",
            "prefill",
            "router-0",
            "resubscribe to the workers' KV events and rebuild the index",
            cluster=_TIGHT,
            workload=_MANY_BEGINNINGS,
            causes=(LoseRemovals(),),
        ),
        Scenario(
            "load_only",
            "the router lost its KV index and chooses by load alone",
            "prefill",
            "router-0",
            "bring KV-aware routing back",
            cluster=_TIGHT,
            workload=_MANY_BEGINNINGS,
            causes=(ChangeKnowledge("load_only"),),
        ),
        Scenario(
            "kv_leak",
            "prefill worker p0 never hears that its state was pulled: it holds it until the lease ends",
            "prefill_queue",
            "p0",
            "repair the release message to p0",
            requests=600,
            cluster=replace(_with(base_cluster(), "prefill", blocks=480), policy=Policy(lease_ns=20 * SECOND)),
            causes=(LeakHolds("p0"),),
        ),
        Scenario(
            "recompute_storm",
            "four of ten transfers fail: decode workers compute those prompts again",
            "recompute",
            "decode",
            "repair the transfer backend",
            workload=Workload(rate_per_s=8.0),
            causes=(FailTransfers(0.4),),
        ),
        Scenario(
            "p_restart",
            "prefill worker p0 restarts every 8 seconds: its cache is cold, and the router believes in the old one",
            "prefill",
            "p0",
            "stop p0's crash loop",
            cluster=_TIGHT,
            workload=Workload(rate_per_s=6.0, groups=40, group_tokens=2048),
            causes=(Restart("p0", down_ns=SECOND, every_ns=8 * SECOND),),
        ),
        Scenario(
            "clock_skew",
            "the clock of node-0 drifts by 1000 microseconds a second: spans of p0 and p1 move, the requests do not",
            "",
            "node-0",
            "repair time synchronisation on node-0",
            drift_ppm=(("node-0", 1000.0),),
        ),
        Scenario(
            "scale_up",
            "the rate doubles and the autoscaler's new prefill workers need 10 seconds to start",
            "prefill_queue",
            "prefill",
            "keep a warm spare, or scale earlier",
            requests=1200,
            cluster=base_cluster(
                workers=(
                    Worker("p0", "prefill", "node-0"),
                    Worker("p1", "prefill", "node-1", spare=True),
                    Worker("p2", "prefill", "node-0", spare=True),
                    Worker("d0", "decode", "node-1"),
                    Worker("d1", "decode", "node-2"),
                    Worker("d2", "decode", "node-2"),
                )
            ),
            workload=Workload(rate_per_s=16.0),
            asked=lambda workload: replace(workload, rate_step=2.5),
            scale=Autoscale(waiting=4.0, start_up_ns=10 * SECOND),
        ),
        Scenario(
            "mixed_lengths",
            "six prompts in a hundred have 20,000 tokens: short ones wait behind them",
            "prefill_queue",
            "p0",
            "route long prompts to workers of their own, or a smaller chunk",
            requests=600,
            # One prefill worker: with several, the router would keep the short ones away from the long.
            cluster=_with(_only(base_cluster(), "prefill", "p0"), "prefill", token_budget=1024),
            workload=Workload(rate_per_s=8.0),
            asked=lambda workload: replace(workload, long_share=0.06, long_tokens=20_000),
        ),
    )
}
"""Every scenario by name, in the order in which a walk goes through them."""
