"""What truly happened to one request, and the facts of the cluster it happened in.

Owns: the plain data between the engine, the emitters and the truth. Not: how any of it came about, or how it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CONTAINER = "container"
"""Stage of a doing that is the front end's or the proxy's whole interval."""

DECODE = "decode"
"""Stage of a doing after the first token: the decode worker makes the rest."""

KV_HOLD = "kv_hold"
"""Stage of a doing that keeps a request's state on P, from the end of prefill until its release."""


@dataclass(slots=True)
class Doing:
    """One true interval of one request on one worker."""

    stage: str
    """A stage 1 to 11 of the definitions, or `container`, `decode`, `kv_hold`."""
    start_ns: int
    """True time."""
    end_ns: int
    """True time, not before ``start_ns``."""
    worker: str
    """Worker id; for the router and the container the router's id."""
    host: str
    """Host whose clock stamps it."""
    attempt: int = 0
    """Which attempt of the request it belongs to, from 0."""
    rank: str = ""
    """Rank of a handoff; empty elsewhere."""
    chunk: str = ""
    """Chunk of a handoff; empty elsewhere."""
    side: str = ""
    """Side of a handoff that reports it: `source` or `destination`; empty elsewhere."""
    failed: str = ""
    """What went wrong; empty if nothing did."""
    detail: dict[str, Any] = field(default_factory=dict)
    """What else is known: prompt_tokens, cached_tokens, cached_by_tier, bytes, states, src, dst, backend, ...; ``cut`` is
    True where it was ended before its own end."""


@dataclass(slots=True)
class RouteChoice:
    """One decision of the router: what it knew, what it chose, and what was really so."""

    stage: str
    """Leg that the worker was chosen for: `prefill` or `decode`."""
    mode: str
    """What the router knows by: `events`, `predicted`, `load_only`, `round_robin`."""
    candidates: list[str]
    """Worker ids it could choose from."""
    overlap_tokens: list[int]
    """Prompt tokens it believed cached, a candidate each."""
    cost: list[float]
    """Its own cost, a candidate each; the smallest is chosen."""
    predicted_queue_ms: list[float]
    """Wait it expected, a candidate each."""
    predicted_prefill_ms: list[float]
    """Prefill it expected, a candidate each."""
    predicted_transfer_ms: list[float]
    """Transfer it expected, a candidate each."""
    block_size: int
    """Tokens a block of its index."""
    chosen: str
    """Worker id it took."""
    reason: str
    """In words, such as `lowest_cost` or `retry`."""
    time_ns: int
    """True time of the decision."""
    attempt: int = 0
    """Attempt that it was made for."""
    truth: list[int] = field(default_factory=list)
    """Prompt tokens really cached at that time, a candidate each."""


@dataclass(slots=True)
class Story:
    """One user-visible request, told in true time."""

    request_id: str
    number: int
    """Place in the order of arrival, from 0."""
    model: str
    run: str
    frontend: str
    """Id of the front end (router) that had it."""
    frontend_host: str
    arrival_ns: int
    """True time at the front end."""
    first_token_ns: int | None
    """True time at which the front end sent the first token; None: it never did."""
    end_ns: int | None
    """True time at which the front end was done with it; None: still open."""
    outcome: str
    """One of the ledger's outcomes (definitions section 4)."""
    mode: str
    """`sequential`, `overlapped`, `aggregated` or `prefill_on_decode`; `unknown`: it never came to a worker."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int | None
    """Prompt tokens found cached on P (its last attempt); None: no prefill began."""
    prefill_worker: str | None
    decode_worker: str | None
    doings: list[Doing] = field(default_factory=list)
    choices: list[RouteChoice] = field(default_factory=list)
    token_times_ns: list[int] = field(default_factory=list)
    """True times of the user-visible tokens."""
    http_status: int | None = None
    error: str = ""
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class WorkerChange:
    """A worker came to live or ceased to, at a true time."""

    worker: str
    state: str
    """`starting`, `ready`, `draining` or `dead`."""
    time_ns: int


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host's clock against true time."""

    offset_ns: int = 0
    """What its clock reads more than true time, until ``epoch_ns``."""
    drift_ppm: float = 0.0
    """How much more it gains from then on: microseconds a second."""
    epoch_ns: int = 0
    """True time at which the drift begins."""


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """One process of the cluster."""

    role: str
    """`router`, `prefill`, `decode` or `aggregated`."""
    host: str
    pool: str = ""
    gpus: int = 0
    gpu_type: str = ""
    tp: int = 1


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Hosts and workers of a simulated cluster, those started later included."""

    hosts: dict[str, HostFacts]
    workers: dict[str, WorkerFacts]

    def stamp(self, host: str, true_ns: int) -> int:
        """Unix time in ns that the host's clock reads at a true time; never steps back for drifts above -1e6 ppm."""
        clock = self.hosts[host]
        since_ns = true_ns - clock.epoch_ns
        if clock.drift_ppm and since_ns > 0:
            return true_ns + clock.offset_ns + round(since_ns * clock.drift_ppm / 1_000_000)
        return true_ns + clock.offset_ns
