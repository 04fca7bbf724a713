"""The shape of a simulated cluster: hosts, workers, links, what a step costs, how the router decides.

Owns plain frozen data. What happens in such a cluster is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdtrace.simulate.story import ClusterFacts, HostFacts, WorkerFacts

MS = 1_000_000
SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Costs:
    """How long work takes and how large state is."""

    tokenise_ns: int = 300_000
    """Front end, a request."""
    tokenise_ns_per_token: int = 100
    route_ns: int = 200_000
    """One decision of the router; it makes one at a time."""
    rpc_ns: int = 150_000
    """One message between processes, one way."""
    egress_ns: int = 100_000
    """Front end, from a token's arrival to sending it."""
    prefill_step_ns: int = 4 * MS
    prefill_ns_per_token: int = 60_000
    decode_step_ns: int = 8 * MS
    decode_ns_per_sequence: int = 150_000
    decode_prompt_ns_per_token: int = 90_000
    """A prompt computed on D, which is not made for it."""
    layers: int = 64
    state_bytes_per_token: tuple[tuple[str, int], ...] = (("kv", 160_000),)
    """State kind and bytes for each prompt token."""
    state_bytes: tuple[tuple[str, int], ...] = ()
    """State kind and bytes for a request, whatever its length."""
    detect_ns: int = 50 * MS
    """From a worker's end to the router's noticing it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine process."""

    name: str
    role: str
    """`prefill`, `decode` or `aggregated`."""
    host: str
    pool: str = ""
    gpus: int = 2
    gpu_type: str = "H100-SXM"
    tp: int = 2
    blocks: int = 8192
    """Capacity of its KV memory."""
    most_running: int = 64
    """Sequences at a time."""
    token_budget: int = 2048
    """Prompt tokens a step."""
    spare: bool = False
    """Not started until the autoscaler asks for it."""


@dataclass(frozen=True, slots=True)
class Links:
    """The network between hosts, and inside one."""

    nvlink_gb_per_s: float = 200.0
    """Inside a host, all transfers together; gigabytes (1e9 bytes) a second as everywhere here."""
    nic_gb_per_s: float = 25.0
    """In and out of a host, each way."""
    latency_ns: int = 20_000
    sharing: str = "fair"
    """`fair`: transfers on a NIC share it; `fifo`: one after the other."""
    path: str = "rdma"
    """How hosts reach each other: `rdma` or `tcp`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How the serving stack behaves."""

    mode: str = "sequential"
    """`sequential`: P answers, then D is called; `overlapped`: both are called together; `aggregated`."""
    streaming: str = "after"
    """Overlapped handoff: `after` prefill, `chunked` (each chunk when it is computed) or `layerwise`."""
    knowledge: str = "events"
    """What the router knows caches by: `events`, `predicted`, `load_only` or `round_robin`."""
    predicted_ttl_ns: int = 120 * SECOND
    """How long the router believes in what it sent."""
    on_lost_state: str = "recompute"
    """`recompute` the prompt on D, or `fail` the request."""
    most_attempts: int = 2
    lease_ns: int = 60 * SECOND
    """P gives up state that nobody began to pull for so long."""
    prefill_on_decode_below: int = 0
    """Prompts with fewer uncached tokens are computed on D."""
    most_open: int = 1024
    """Requests at a front end; above it they are rejected."""
    timeout_ns: int = 0
    """Server's own limit for a request; 0 = none."""
    backend: str = "nixl"


@dataclass(frozen=True, slots=True)
class Autoscale:
    """Starts spare prefill workers when requests wait."""

    waiting: float = 4.0
    """Waiting requests for each ready prefill worker that call for one more."""
    check_ns: int = SECOND
    start_up_ns: int = 30 * SECOND


@dataclass(frozen=True, slots=True)
class Cluster:
    """Everything that does not change by itself."""

    workers: tuple[Worker, ...]
    routers: tuple[tuple[str, str], ...] = (("router-0", "edge-0"),)
    """Front ends with their hosts; requests go round them."""
    costs: Costs = field(default_factory=Costs)
    links: Links = field(default_factory=Links)
    policy: Policy = field(default_factory=Policy)
    autoscale: Autoscale | None = None
    block_size: int = 64
    """Tokens a block, in caches and in the router's index."""
    model: str = "llama-3.3-70b"
    clocks: tuple[tuple[str, HostFacts], ...] = ()
    """Hosts whose clocks are not right; epochs count from the start of the simulation."""

    def facts(self, start_ns: int) -> ClusterFacts:
        """What emitters and the truth need to know of it; ``start_ns`` is the true time of the start."""
        hosts = dict.fromkeys([host for _, host in self.routers] + [w.host for w in self.workers], HostFacts())
        for host, clock in self.clocks:
            hosts[host] = HostFacts(clock.offset_ns, clock.drift_ppm, start_ns + clock.epoch_ns)
        workers = {name: WorkerFacts("router", host) for name, host in self.routers}
        for w in self.workers:
            workers[w.name] = WorkerFacts(w.role, w.host, w.pool or w.role, w.gpus, w.gpu_type, w.tp)
        return ClusterFacts(hosts, workers)


def base_cluster(**changed: object) -> Cluster:
    """Three P and three D on three hosts; p2 and d0 share one, so their transfers take NVLink."""
    workers = (
        Worker("p0", "prefill", "node-0"),
        Worker("p1", "prefill", "node-0"),
        Worker("p2", "prefill", "node-1"),
        Worker("d0", "decode", "node-1"),
        Worker("d1", "decode", "node-2"),
        Worker("d2", "decode", "node-2"),
    )
    return Cluster(**{"workers": workers, **changed})  # type: ignore[arg-type]
