"""A request while it is in the cluster.

Owns where it is and what it holds. What it did so far is its story; what happens next is the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdtrace.simulate.arrivals import Arrival
from pdtrace.simulate.story import Doing, RouteChoice, Story

if TYPE_CHECKING:
    from pdtrace.simulate.decode_worker import DecodeWorker
    from pdtrace.simulate.network import Flow
    from pdtrace.simulate.prefill_worker import PrefillWorker
    from pdtrace.simulate.router import Router

#: End of a doing that has not ended.
OPEN_NS = -1


class Hold:
    """State of one request kept on P after prefill, until D has it or P gives it up."""

    __slots__ = ("block_count", "doing", "flight", "generation", "worker")

    def __init__(self, flight: Flight, worker: PrefillWorker, doing: Doing) -> None:
        self.flight = flight
        self.block_count = flight.block_count
        self.worker = worker
        self.doing = doing
        self.generation = 0


class Deadline:
    """The client's patience or the server's limit for one request."""

    __slots__ = ("flight", "generation")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.generation = 0


class Flight:
    """One request on its way. Its generation rises when an attempt ends: what was planned for it is void then."""

    __slots__ = (
        "arrival",
        "at_p",
        "attempt",
        "block_count",
        "chunks",
        "closed",
        "computed",
        "computed_before",
        "d",
        "decode_first",
        "decode_last",
        "expected_tokens",
        "fell_back",
        "first_end_ns",
        "flows",
        "found",
        "generation",
        "handoffs",
        "hold",
        "holds_open",
        "joined",
        "lost",
        "p",
        "prefill",
        "prompt_tokens",
        "remaining",
        "reserved",
        "router",
        "segment",
        "shaken",
        "story",
        "tokens",
        "waits",
    )

    def __init__(self, arrival: Arrival, story: Story, router: Router) -> None:
        self.arrival = arrival
        self.story = story
        self.router = router
        self.generation = 0
        self.attempt = 0
        self.closed = False  # the front end is done with it
        self.fell_back = False
        self.computed_before = False  # an earlier attempt did prompt work that is lost
        self.prompt_tokens = arrival.input_tokens
        self.tokens: list[int] = []  # when the client got them
        self.holds_open = 0
        self.reset()

    def reset(self) -> None:
        """Nothing is held anywhere: the state at the start of an attempt."""
        self.p: PrefillWorker | None = None
        self.d: DecodeWorker | None = None
        self.waits: dict[str, Doing] = {}  # worker -> the wait that it is in there
        self.at_p = False  # in P's queue or running there
        self.prefill: Doing | None = None
        self.shaken = False  # overlapped: P knows that D has room
        self.lost = ""  # why P has its state no more
        self.computed = False  # P, or D in its place, has done the prompt
        self.remaining = 0  # prompt tokens still to be computed on P
        self.block_count = 0  # blocks it has on P
        self.found = 0  # of these, found cached
        self.expected_tokens = 0  # prompt tokens the router counts on P for it
        self.reserved = 0  # blocks it has on D
        self.flows: list[Flow] = []
        self.chunks = 0  # sent so far
        self.handoffs: list[Doing] = []  # chunks' transfers that are open
        self.hold: Hold | None = None
        self.joined = False
        self.segment = 0  # D's history from where its tokens are
        self.decode_first = 0  # D's step that made its first token
        self.decode_last = 0
        self.first_end_ns = 0

    def begin(self, stage: str, time_ns: int, worker: str, host: str) -> Doing:
        """A doing that begins now and is still open."""
        doing = Doing(stage, time_ns, OPEN_NS, worker, host, self.attempt)
        self.story.doings.append(doing)
        return doing

    def did(self, stage: str, start_ns: int, end_ns: int, worker: str, host: str) -> None:
        """A doing of known length; of none, it is left out."""
        if end_ns > start_ns:
            self.begin(stage, start_ns, worker, host).end_ns = end_ns

    def wait(self, stage: str, time_ns: int, worker: str, host: str) -> None:
        """It waits at a worker from now on; ``waited`` ends it."""
        self.waits[worker] = self.begin(stage, time_ns, worker, host)

    def waited(self, worker: str, time_ns: int) -> None:
        """The wait at a worker is over. One of no length is none."""
        waiting = self.waits.pop(worker, None)
        if waiting is None:
            return
        waiting.end_ns = time_ns
        if waiting.start_ns == time_ns:
            doings = self.story.doings
            if doings[-1] is waiting:
                doings.pop()
            else:
                self.story.doings = [doing for doing in doings if doing is not waiting]

    def chose(self, choice: RouteChoice) -> None:
        """Remember what the router decided."""
        choice.attempt = self.attempt
        self.story.choices.append(choice)
