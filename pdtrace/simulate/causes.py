"""What can go wrong in a simulated cluster, from the onset on.

Owns plain frozen data. A cause that is in what is asked (bursts, long prompts) is the workload's, one that is in a
clock is the cluster's; what each of these does is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtrace.simulate.cluster import SECOND


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One link between two hosts is slow."""

    source: str
    destination: str
    gb_per_s: float
    path: str = "tcp"


@dataclass(frozen=True, slots=True)
class LoseRemovals:
    """Routers rebuild their index from a replay that lacks removals, and hear of none from then on.

    The cluster has been up for long: each worker has had every shared beginning at some time.
    """


@dataclass(frozen=True, slots=True)
class ChangeKnowledge:
    """Routers know caches by something else."""

    knowledge: str


@dataclass(frozen=True, slots=True)
class LeakHolds:
    """A prefill worker never hears that its state was pulled: it holds it until the lease ends."""

    worker: str


@dataclass(frozen=True, slots=True)
class FailTransfers:
    """A share of the transfers fails."""

    share: float


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker restarts, once or again and again; routers keep believing in the cache that it had."""

    worker: str
    down_ns: int = 3 * SECOND
    every_ns: int = 0
    """0: once."""
    times: int = 1_000_000
    """At most so often."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Workers take no new requests."""

    workers: tuple[str, ...]


Cause = SlowLink | LoseRemovals | ChangeKnowledge | LeakHolds | FailTransfers | Restart | Drain
