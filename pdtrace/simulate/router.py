"""A front end's router: what it knows of caches and load, and whom it chooses by that.

Owns belief. What is really so is the workers'; both go into the choice, so that an audit can be audited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from pdtrace.simulate.arrivals import OWN_BLOCKS
from pdtrace.simulate.cluster import Cluster
from pdtrace.simulate.decode_worker import DecodeWorker
from pdtrace.simulate.flight import Flight
from pdtrace.simulate.network import Network
from pdtrace.simulate.prefill_worker import PrefillWorker
from pdtrace.simulate.story import RouteChoice

_FOREVER_NS: Final = 1 << 62


class BelievedIndex:
    """Blocks one worker is believed to have: those it was heard of, for a while; that they went, nobody tells."""

    def __init__(self, ttl_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._until_ns: dict[int, int] = {}
        self._heard: deque[tuple[int, Sequence[int]]] = deque()

    def add(self, blocks: Sequence[int], time_ns: int) -> None:
        """These blocks are there from now on."""
        until_ns = time_ns + self._ttl_ns
        blocks = [block for block in blocks if block < OWN_BLOCKS]  # one request's own blocks never match another's
        self._until_ns.update(dict.fromkeys(blocks, until_ns))
        if self._ttl_ns < _FOREVER_NS:
            self._heard.append((until_ns, blocks))

    def match(self, blocks: Sequence[int], time_ns: int) -> int:
        """Leading blocks of a prompt believed there."""
        while self._heard and self._heard[0][0] <= time_ns:
            for block in self._heard.popleft()[1]:
                if self._until_ns.get(block, time_ns + 1) <= time_ns:
                    del self._until_ns[block]
        known = self._until_ns
        found = 0
        for block in blocks:
            if block not in known:
                break
            found += 1
        return found


class Router:
    """One front end's router."""

    def __init__(self, name: str, host: str, cluster: Cluster, network: Network) -> None:
        self.name = name
        self.host = host
        self.generation = 0
        self.free_ns = 0  # it decides one at a time
        self.open = 0
        self.knowledge = cluster.policy.knowledge
        self._cluster = cluster
        self._network = network
        self._turn = {"prefill": 0, "decode": 0}
        self._prompt_tokens: dict[str, int] = {}  # sent to a prefill worker and not answered
        self._requests: dict[str, int] = {}  # sent to a decode worker and not finished
        self._predicted: dict[str, BelievedIndex] = {}
        self._stale: dict[str, BelievedIndex] = {}  # workers whose removals it no longer hears of
        state = cluster.costs.state_bytes_per_token
        self._bytes_per_token = sum(size for _, size in state)

    def lose_removals(self, worker: PrefillWorker, time_ns: int, also: Sequence[int] = ()) -> None:
        """From now on it hears what the worker stores and no longer what the worker drops.

        ``also`` is what the worker had some time before and the router now believes it to have again.
        """
        if worker.name not in self._stale:
            index = self._stale[worker.name] = BelievedIndex(_FOREVER_NS)
            index.add([*worker.cache.blocks(), *also], time_ns)

    def sent_before(self, worker: str, blocks: Sequence[int], time_ns: int) -> None:
        """A prompt that begins so was sent there before the simulation began."""
        if self.knowledge == "predicted":
            self._predicted.setdefault(worker, BelievedIndex(self._cluster.policy.predicted_ttl_ns)).add(
                blocks, time_ns
            )

    def heard(self, worker: str, blocks: Sequence[int], time_ns: int) -> None:
        """A worker stored a prompt's blocks."""
        index = self._stale.get(worker)
        if index is not None:
            index.add(blocks, time_ns)

    def choose_prefill(self, flight: Flight, workers: Sequence[PrefillWorker], time_ns: int, stage: str) -> RouteChoice:
        """The worker to compute the prompt: the least cost by what the router knows; ``workers`` must not be empty."""
        cluster, costs = self._cluster, self._cluster.costs
        size, blocks = cluster.block_size, flight.arrival.blocks
        most = (flight.prompt_tokens - 1) // size
        truth = [min(worker.cache.match(blocks), most) * size for worker in workers]
        overlap = [min(found, most * size) for found in self._overlaps(flight, workers, truth, time_ns)]
        per_ms = costs.prefill_ns_per_token / 1e6
        queue = [self._prompt_tokens.get(worker.name, 0) * per_ms for worker in workers]
        prefill = [costs.prefill_step_ns / 1e6 + (flight.prompt_tokens - found) * per_ms for found in overlap]
        move_ms = flight.prompt_tokens * self._bytes_per_token / cluster.links.nic_gb_per_s / 1e6
        if self.knowledge == "round_robin":
            cost = [float((at - self._turn["prefill"]) % len(workers)) for at in range(len(workers))]
        elif self.knowledge == "load_only":
            cost = queue
        else:
            cost = [wait + work for wait, work in zip(queue, prefill, strict=True)]
        best = self._least(cost, "prefill")
        chosen = workers[best]
        flight.expected_tokens = flight.prompt_tokens - overlap[best]
        self._prompt_tokens[chosen.name] = self._prompt_tokens.get(chosen.name, 0) + flight.expected_tokens
        if self.knowledge == "predicted":
            self._predicted.setdefault(chosen.name, BelievedIndex(cluster.policy.predicted_ttl_ns)).add(blocks, time_ns)
        return RouteChoice(
            stage,
            self.knowledge,
            [worker.name for worker in workers],
            overlap,
            cost,
            queue,
            prefill,
            [move_ms] * len(workers),
            size,
            chosen.name,
            "retry" if flight.attempt else "lowest_cost",
            time_ns,
            truth=truth,
        )

    def _overlaps(
        self, flight: Flight, workers: Sequence[PrefillWorker], truth: list[int], time_ns: int
    ) -> Sequence[int]:
        size, blocks = self._cluster.block_size, flight.arrival.blocks
        if self.knowledge == "events":
            if not self._stale:
                return truth
            return [
                self._stale[worker.name].match(blocks, time_ns) * size if worker.name in self._stale else found
                for worker, found in zip(workers, truth, strict=True)
            ]
        if self.knowledge == "predicted":
            return [
                self._predicted[worker.name].match(blocks, time_ns) * size if worker.name in self._predicted else 0
                for worker in workers
            ]
        return [0] * len(workers)

    def _least(self, cost: list[float], leg: str) -> int:
        """Place of the smallest cost; equals take turns."""
        least = min(cost)
        equal = [at for at, each in enumerate(cost) if each == least]
        self._turn[leg] += 1
        return equal[(self._turn[leg] - 1) % len(equal)]

    def least_uncached(self, flight: Flight, workers: Sequence[PrefillWorker], time_ns: int) -> int:
        """Prompt tokens to be computed on the worker that is believed to have most of them."""
        size = self._cluster.block_size
        truth = [worker.cache.match(flight.arrival.blocks) * size for worker in workers]
        return flight.prompt_tokens - max(self._overlaps(flight, workers, truth, time_ns))

    def choose_decode(self, flight: Flight, workers: Sequence[DecodeWorker], time_ns: int) -> RouteChoice:
        """The worker to decode: the one with the fewest requests. Overlap on D is none by design."""
        cost = [float(self._requests.get(worker.name, 0)) for worker in workers]
        chosen = workers[self._least(cost, "decode")]
        self._requests[chosen.name] = self._requests.get(chosen.name, 0) + 1
        none = [0.0] * len(workers)
        return RouteChoice(
            "decode",
            "load_only",
            [worker.name for worker in workers],
            [0] * len(workers),
            cost,
            none,
            none,
            none,
            self._cluster.block_size,
            chosen.name,
            "retry" if flight.attempt else "least_loaded",
            time_ns,
            truth=[0] * len(workers),
        )

    def prompt_left(self, flight: Flight) -> None:
        """The prefill worker answered, or the attempt is over."""
        if flight.p is not None and flight.expected_tokens:
            self._prompt_tokens[flight.p.name] -= flight.expected_tokens
            flight.expected_tokens = 0

    def sent_to_decode(self, flight: Flight) -> None:
        """A request stays on its worker for decoding."""
        if flight.d is not None:
            self._requests[flight.d.name] = self._requests.get(flight.d.name, 0) + 1

    def decode_left(self, flight: Flight) -> None:
        """The decode worker is done with it, or the attempt is over."""
        if flight.d is not None:
            self._requests[flight.d.name] -= 1
