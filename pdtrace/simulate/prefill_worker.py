"""A prefill worker: a queue, steps of many prompts' chunks, a prefix cache.

Owns batching and memory on P. What a finished prompt means is the engine's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pdtrace.simulate.cluster import Cluster, Worker
from pdtrace.simulate.flight import Flight, Hold
from pdtrace.simulate.loop import Loop
from pdtrace.simulate.prefix_cache import PrefixCache


class PrefillListener(Protocol):
    """Who is told what becomes of prompts."""

    def prefill_began(self, flight: Flight, time_ns: int) -> None:
        """Its first chunk is in the step that begins now."""

    def chunk_computed(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """A chunk is done, others of the prompt are not."""

    def prefill_done(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """The last chunk is done."""


class PrefillWorker:
    """One process. First come, first served; a step takes chunks of prompts up to its token budget."""

    def __init__(self, shape: Worker, cluster: Cluster, loop: Loop, listener: PrefillListener) -> None:
        self.shape = shape
        self.name = shape.name
        self.host = shape.host
        self.generation = 0
        self.up = True
        self.cache = PrefixCache(shape.blocks)
        self.holding: dict[Hold, None] = {}  # prompts that are done and still here
        self._costs = cluster.costs
        self._block_size = cluster.block_size
        self._loop = loop
        self._listener = listener
        self._waiting: deque[tuple[Flight, int]] = deque()
        self._left = 0  # entries of the queue that are void
        self._running: list[Flight] = []
        self._step: list[tuple[Flight, int, int]] = []  # flight, its generation, tokens
        self._busy = False

    @property
    def waiting_count(self) -> int:
        """Requests in the queue."""
        return len(self._waiting) - self._left

    def submit(self, flight: Flight, time_ns: int) -> None:
        """Queue a prompt."""
        flight.at_p = True
        self._waiting.append((flight, flight.generation))
        self.kick(time_ns)

    def kick(self, time_ns: int) -> None:
        """Begin a step if none runs and something can be done."""
        if self._busy or not self.up:
            return
        budget = self.shape.token_budget
        tokens = 0
        step = self._step = []
        for flight in self._running:
            if tokens == budget:
                break
            take = min(budget - tokens, flight.remaining)
            tokens += take
            step.append((flight, flight.generation, take))
        while self._waiting and tokens < budget and len(self._running) < self.shape.most_running:
            flight, generation = self._waiting[0]
            if flight.generation != generation:
                self._waiting.popleft()
                self._left -= 1
                continue
            if not self._admit(flight):
                break  # no memory: whoever comes first waits for it, and all others behind
            self._waiting.popleft()
            self._running.append(flight)
            self._listener.prefill_began(flight, time_ns)
            take = min(budget - tokens, flight.remaining)
            tokens += take
            step.append((flight, flight.generation, take))
        if step:
            self._busy = True
            duration_ns = self._costs.prefill_step_ns + tokens * self._costs.prefill_ns_per_token
            self._loop.at(time_ns + duration_ns, PrefillWorker._stepped, self)

    def _admit(self, flight: Flight) -> bool:
        size = self._block_size
        blocks = -(-flight.prompt_tokens // size)
        # The last token is always computed: without it there is nothing to sample from.
        found = self.cache.begin(flight.arrival.blocks, blocks, (flight.prompt_tokens - 1) // size)
        if found is None:
            return False
        flight.block_count, flight.found = blocks, found
        flight.remaining = flight.prompt_tokens - found * size
        return True

    def _stepped(self, time_ns: int) -> None:
        self._busy = False
        done = []
        for flight, generation, tokens in self._step:
            if flight.generation != generation:
                continue  # it was given up while the step ran
            flight.remaining -= tokens
            if flight.remaining:
                self._listener.chunk_computed(flight, tokens, time_ns)
            else:
                self._running.remove(flight)
                flight.at_p = False
                self.cache.fill(flight.arrival.blocks, flight.found)
                done.append((flight, tokens))
        for flight, tokens in done:
            self._listener.prefill_done(flight, tokens, time_ns)
        self.kick(time_ns)

    def release(self, blocks: Sequence[int], block_count: int, time_ns: int) -> None:
        """A finished prompt's state is not needed here any more."""
        self.cache.release(blocks, block_count)
        if self._waiting:
            self.kick(time_ns)

    def drop(self, flight: Flight) -> None:
        """A prompt that is not done is given up; call it after the flight's generation rose."""
        flight.at_p = False
        if flight.block_count:
            self._running.remove(flight)
            self.cache.abandon(flight.arrival.blocks, flight.block_count, flight.found)
            flight.block_count = 0
        else:
            self._left += 1

    def in_work(self) -> list[Flight]:
        """Prompts that wait or run, the running ones first."""
        return self._running + [f for f, generation in self._waiting if f.generation == generation]

    def stop(self) -> None:
        """The process ends; whoever was on it must have been taken off."""
        self.up = False
        self.generation += 1
        self._busy = False
        self._waiting.clear()
        self._left = 0
        self._running.clear()
        self.holding.clear()
        self.cache.clear()
