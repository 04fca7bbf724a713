"""Tiny clusters and requests for tests of the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pdtrace.simulate.arrivals import Arrival, Workload
from pdtrace.simulate.causes import Cause
from pdtrace.simulate.cluster import Cluster, Costs, Links, Policy, Worker
from pdtrace.simulate.engine import Simulation
from pdtrace.simulate.faults import plan_cause
from pdtrace.simulate.story import Doing, Story

#: Round numbers: a prompt token takes 1,000 ns, a byte 1 ns, everything else is easily told from it.
ROUND = Costs(
    tokenise_ns=10,
    tokenise_ns_per_token=0,
    route_ns=20,
    rpc_ns=5,
    egress_ns=3,
    prefill_step_ns=100,
    prefill_ns_per_token=1_000,
    decode_step_ns=500,
    decode_ns_per_sequence=50,
    decode_prompt_ns_per_token=2_000,
    layers=10,
    state_bytes_per_token=(("kv", 100),),
    detect_ns=1_000,
)
P = Worker("p0", "prefill", "host-p", tp=1, blocks=100, token_budget=100)
D = Worker("d0", "decode", "host-d", tp=1, blocks=100, most_running=8)


def cluster(
    *workers: Worker, latency_ns: int = 7, gb_per_s: float = 1.0, sharing: str = "fair", **policy: Any
) -> Cluster:
    """One P and one D on two hosts unless told otherwise; blocks of 10 tokens, a link of 1 byte a ns."""
    return Cluster(
        workers=workers or (P, D),
        costs=ROUND,
        links=Links(nvlink_gb_per_s=10.0, nic_gb_per_s=gb_per_s, latency_ns=latency_ns, sharing=sharing),
        policy=Policy(**policy),
        block_size=10,
    )


def ask(
    number: int, time_ns: int, input_tokens: int, output_tokens: int = 3, shared: Iterable[int] = (), **more: Any
) -> Arrival:
    """A request; its blocks are ``shared``, then its own."""
    blocks = list(shared)[: input_tokens // 10]
    blocks += [1_000_000 * (number + 1) + i for i in range(input_tokens // 10 - len(blocks))]
    return replace(Arrival(number, time_ns, input_tokens, output_tokens, blocks, None, 0.5), **more)


def play(
    shape: Cluster, *asked: Arrival, causes: Iterable[tuple[int, Cause]] = (), until_ns: int | None = None
) -> list[Story]:
    """Stories by number."""
    return played(shape, *asked, causes=causes, until_ns=until_ns)[1]


def played(
    shape: Cluster, *asked: Arrival, causes: Iterable[tuple[int, Cause]] = (), until_ns: int | None = None
) -> tuple[Simulation, list[Story]]:
    """The simulation after its run, and its stories by number."""
    simulation = Simulation(shape, Workload(groups=0), seed=0, requests=0, onset_ns=0, start_ns=0, asked=asked)
    for time_ns, cause in causes:
        plan_cause(simulation, cause, time_ns)
    return simulation, sorted(simulation.run(until_ns), key=lambda story: story.number)


def times(story: Story, *stages: str) -> list[tuple[str, int, int]]:
    """(stage, start, end) of its doings of these stages (of all), in order of start."""
    return sorted(((d.stage, d.start_ns, d.end_ns) for d in of(story, *stages)), key=lambda each: each[1:])


def of(story: Story, *stages: str) -> list[Doing]:
    """Its doings of these stages (of all)."""
    return [doing for doing in story.doings if not stages or doing.stage in stages]
