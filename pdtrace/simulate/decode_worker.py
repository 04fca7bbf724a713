"""A decode worker: room that is reserved in turn, and steps that give every running request one token.

Owns D's memory, batch and steps. A step lasts as long as the batch is large; between two changes of the batch all steps
are alike, so they are counted, not played: one event for each change, none for each token.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Protocol

from pdtrace.simulate.cluster import Cluster, Worker
from pdtrace.simulate.flight import Flight
from pdtrace.simulate.loop import Loop

#: Forget history that nobody needs when this much has gathered.
_MOST_SEGMENTS = 100_000


class DecodeListener(Protocol):
    """Who is told what becomes of requests on D."""

    def reserved(self, flight: Flight, time_ns: int) -> None:
        """It has room."""

    def joined(self, flight: Flight, time_ns: int, first_end_ns: int) -> None:
        """Its first step here begins now; its token is there at ``first_end_ns``."""

    def decoded(self, flight: Flight, time_ns: int) -> None:
        """Its last token is there."""


class DecodeWorker:
    """One process."""

    def __init__(self, shape: Worker, cluster: Cluster, loop: Loop, listener: DecodeListener) -> None:
        self.shape = shape
        self.name = shape.name
        self.host = shape.host
        self.generation = 0
        self.up = True
        self.draining = False
        self.used = 0
        self.peak = 0
        self.present: dict[Flight, None] = {}  # all that have room here
        self._costs = cluster.costs
        self._block_size = cluster.block_size
        self._loop = loop
        self._listener = listener
        self._wanting: deque[tuple[Flight, int, int]] = deque()  # flight, its generation, blocks
        self._joining: list[tuple[Flight, int, int]] = []  # flight, its generation, tokens to make
        self._ending: list[tuple[int, int, Flight, int]] = []  # last step, order, flight, its generation
        self._order = 0
        self._running = 0
        self._step = 0  # steps made until ``_at_ns``
        self._at_ns = loop.now_ns  # a step's boundary
        self._step_ns = cluster.costs.decode_step_ns
        self._segments: list[tuple[int, int, int]] = []  # step, its boundary, length of the steps after it
        self._forgotten = 0
        self._lane_free_ns = 0

    def blocks_of(self, flight: Flight) -> int:
        """Room it needs: the prompt and everything it will say."""
        return -(-(flight.arrival.input_tokens + flight.arrival.output_tokens) // self._block_size)

    def reserve(self, flight: Flight, time_ns: int) -> None:
        """Ask for room; first come, first served."""
        self._wanting.append((flight, flight.generation, self.blocks_of(flight)))
        self._serve(time_ns)

    def _serve(self, time_ns: int) -> None:
        while self._wanting and self.up:
            flight, generation, blocks = self._wanting[0]
            if flight.generation == generation:
                if self.used + blocks > self.shape.blocks or len(self.present) >= self.shape.most_running:
                    return
                self.used += blocks
                self.peak = max(self.peak, self.used)
                flight.reserved = blocks
                self.present[flight] = None
                self._wanting.popleft()
                self._listener.reserved(flight, time_ns)
            else:
                self._wanting.popleft()

    def wanting(self) -> list[Flight]:
        """Requests that wait for room."""
        return [f for f, generation, _ in self._wanting if f.generation == generation]

    def compute_prompt(self, tokens: int, time_ns: int) -> tuple[int, int]:
        """Start and end of a prompt computed here, one after the other."""
        start_ns = max(time_ns, self._lane_free_ns)
        self._lane_free_ns = start_ns + self._costs.prefill_step_ns + tokens * self._costs.decode_prompt_ns_per_token
        return start_ns, self._lane_free_ns

    def join(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """Take it into the batch at the next step; it is to make ``tokens`` tokens here."""
        self._joining.append((flight, flight.generation, tokens))
        if len(self._joining) == 1:
            self._plan(time_ns)

    def _plan(self, time_ns: int) -> None:
        """Plan the next change of the batch."""
        self.generation += 1
        if not self._running:
            next_ns = time_ns
        elif self._joining:
            made = -(-(time_ns - self._at_ns) // self._step_ns)
            next_ns = self._at_ns + made * self._step_ns
        else:
            next_ns = self._at_ns + (self._ending[0][0] - self._step) * self._step_ns
        if self._running or self._joining:
            if self._joining and self._running:
                next_ns = min(next_ns, self._at_ns + (self._ending[0][0] - self._step) * self._step_ns)
            self._loop.at(max(next_ns, time_ns), DecodeWorker._boundary, self)

    def _boundary(self, time_ns: int) -> None:
        """A step has ended: those that are done leave, those that wait join."""
        if self._running:
            self._step += (time_ns - self._at_ns) // self._step_ns
        self._at_ns = time_ns
        done = []
        while self._ending and (self._ending[0][0] <= self._step or self._gone(self._ending[0])):
            _, _, flight, generation = heappop(self._ending)
            if flight.generation == generation:
                self._running -= 1
                done.append(flight)
        begun = [(f, tokens) for f, generation, tokens in self._joining if f.generation == generation]
        self._joining.clear()
        self._running += len(begun)
        self._step_ns = self._costs.decode_step_ns + self._running * self._costs.decode_ns_per_sequence
        self._segments.append((self._step, time_ns, self._step_ns))
        for flight, tokens in begun:
            flight.joined = True
            flight.segment = self._forgotten + len(self._segments) - 1
            flight.decode_first, flight.decode_last = self._step + 1, self._step + tokens
            flight.first_end_ns = time_ns + self._step_ns
            self._order += 1
            heappush(self._ending, (flight.decode_last, self._order, flight, flight.generation))
            self._listener.joined(flight, time_ns, flight.first_end_ns)
        self._plan(time_ns)
        for flight in done:
            self._listener.decoded(flight, time_ns)
        if len(self._segments) > _MOST_SEGMENTS:
            self._forget()

    def _gone(self, entry: tuple[int, int, Flight, int]) -> bool:
        return entry[2].generation != entry[3]

    def leave(self, flight: Flight, time_ns: int) -> None:
        """Give up its room; a running one that is not done leaves the batch when the present step ends.

        Call it after the flight's generation rose, unless it is done.
        """
        if flight.reserved:
            self.used -= flight.reserved
            flight.reserved = 0
            del self.present[flight]
        if flight.joined and time_ns < self._time_of(flight.decode_last):
            self._running -= 1
            self._shrink(time_ns)
        flight.joined = False
        self._serve(time_ns)

    def _shrink(self, time_ns: int) -> None:
        """Fewer run from the next boundary on. The step that runs keeps its length."""
        while self._ending and self._gone(self._ending[0]):
            heappop(self._ending)
        made = -(-(time_ns - self._at_ns) // self._step_ns)
        self._step += made
        self._at_ns += made * self._step_ns
        self._step_ns = self._costs.decode_step_ns + self._running * self._costs.decode_ns_per_sequence
        self._segments.append((self._step, self._at_ns, self._step_ns))
        self._plan(time_ns)

    def _time_of(self, step: int) -> int:
        return self._at_ns + (step - self._step) * self._step_ns

    def token_times(self, flight: Flight, until_ns: int, plus_ns: int) -> list[int]:
        """When its tokens were there, up to ``until_ns``, each plus ``plus_ns`` (the way to the client)."""
        times: list[int] = []
        segments = self._segments
        at = flight.segment - self._forgotten
        first, last = flight.decode_first, flight.decode_last
        while first <= last and at < len(segments):
            step, time_ns, step_ns = segments[at]
            at += 1
            end = min(last, segments[at][0]) if at < len(segments) else last
            if end >= first:
                start_ns = time_ns + (first - step) * step_ns + plus_ns
                times.extend(range(start_ns, start_ns + (end - first + 1) * step_ns, step_ns))
                first = end + 1
        while times and times[-1] - plus_ns > until_ns:
            times.pop()
        return times

    def _forget(self) -> None:
        needed = [f.segment for f in self.present if f.joined]
        keep = min(needed, default=self._forgotten + len(self._segments))
        del self._segments[: keep - self._forgotten]
        self._forgotten = keep

    def stop(self) -> None:
        """The process ends; whoever was on it must have been taken off."""
        self.up = False
        self.generation += 1
        self.used = self._running = 0
        self.present.clear()
        self._wanting.clear()
        self._joining.clear()
        self._ending.clear()
        self._lane_free_ns = 0
