"""A discrete-event P/D cluster: what happens to every request, in true time.

Owns a request's way through the cluster. Who computes when is the workers', who moves what when is the network's, whom
the router prefers is the router's; what goes wrong is in faults.py.

    sequential   front end > router > P queue, prefill > front end, router > D queue > D pulls > D's next step > client
    overlapped   front end > router > P and D at once; P waits for D's room (bootstrap), then queue, prefill, push
    aggregated   front end > router > queue, prefill, decode, all on one worker

Messages between processes take a fixed time; ending an attempt takes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from pdtrace.simulate.arrivals import Arrival, Workload, arrivals, shared_beginnings
from pdtrace.simulate.cluster import Cluster
from pdtrace.simulate.decode_worker import DecodeWorker
from pdtrace.simulate.flight import OPEN_NS, Deadline, Flight, Hold
from pdtrace.simulate.handoff import Handoff
from pdtrace.simulate.loop import Loop
from pdtrace.simulate.network import Network
from pdtrace.simulate.prefill_worker import PrefillWorker
from pdtrace.simulate.router import Router
from pdtrace.simulate.story import CONTAINER, DECODE, KV_HOLD, Doing, Story, WorkerChange

#: True time at which a simulation starts unless told otherwise: 2026-01-01 00:00:00 UTC.
START_NS = 1_767_225_600_000_000_000


class Simulation:
    """One run of a cluster under a workload. Same arguments, same stories."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        *,
        seed: int,
        requests: int,
        onset_ns: int,
        start_ns: int = START_NS,
        run: str = "",
        asked: Iterable[Arrival] | None = None,
        on_worker_change: Callable[[WorkerChange], None] = lambda _change: None,
    ) -> None:
        """A cluster, and what is asked of it.

        Args:
            cluster: Its shape.
            workload: What is asked.
            seed, requests: As ``arrivals`` takes them.
            onset_ns: True time from which the workload's own changes set in.
            start_ns: True time of the start.
            run: Label; request ids begin with it.
            asked: Arrivals in order of time, instead of the workload's.
            on_worker_change: Called when a worker comes to live or ceases to.
        """
        self.cluster = cluster
        self.costs = cluster.costs
        self.policy = cluster.policy
        self.facts = cluster.facts(start_ns)
        self.generation = 0
        self.run_label = run
        self.loop = Loop(start_ns)
        self.network = Network(cluster.links, self.loop)
        self.routers = [Router(name, host, cluster, self.network) for name, host in cluster.routers]
        self.prefill_workers: dict[str, PrefillWorker] = {}
        self.decode_workers: dict[str, DecodeWorker] = {}
        self.prefill_ready: list[PrefillWorker] = []
        self.decode_ready: list[DecodeWorker] = []
        self.handoff = Handoff(self)
        self.leaking: set[str] = set()
        self.open: dict[Flight, None] = {}
        self._on_worker_change = on_worker_change
        self._told: list[Story] = []
        self._way_back_ns = self.costs.rpc_ns + self.costs.egress_ns
        for shape in cluster.workers:
            if shape.role in ("prefill", "aggregated"):
                self.prefill_workers[shape.name] = PrefillWorker(shape, cluster, self.loop, self)
            if shape.role in ("decode", "aggregated"):
                self.decode_workers[shape.name] = DecodeWorker(shape, cluster, self.loop, self)
            if shape.spare:
                self.prefill_workers[shape.name].up = False
            else:
                self.worker_ready(shape.name, start_ns)
        self._arrivals = (
            iter(asked)
            if asked is not None
            else arrivals(
                workload,
                seed=seed,
                requests=requests,
                start_ns=start_ns,
                onset_ns=onset_ns,
                block_size=cluster.block_size,
            )
        )
        self._coming: Arrival | None = None
        self._warm_up(workload, start_ns)
        self._plan_arrival()

    def _warm_up(self, workload: Workload, start_ns: int) -> None:
        """The cluster has been up for long: every shared beginning is cached somewhere."""
        beginnings = shared_beginnings(workload, self.cluster.block_size)
        self.ever_stored = [block for blocks in beginnings for block in blocks]
        for place, blocks in enumerate(beginnings):
            if self.prefill_ready:
                worker = self.prefill_ready[place % len(self.prefill_ready)]
                if worker.cache.keep(blocks):
                    for router in self.routers:
                        router.sent_before(worker.name, blocks, start_ns)

    # ------------------------------------------------------------------------------------------------------ running

    def run(self, until_ns: int | None = None) -> Iterator[Story]:
        """Stories in the order in which the last thing of each ended; then those still open at ``until_ns``."""
        step, told, loop = self.loop.step, self._told, self.loop
        while True:
            next_ns = loop.next_ns()
            if next_ns is None or (until_ns is not None and next_ns >= until_ns):
                break
            step()
            if told:
                yield from told
                told.clear()
        for flight in list(self.open):
            story = flight.story
            if not flight.closed:
                story.outcome = "in_flight"
                story.token_times_ns = [ns for ns in self._tokens_so_far(flight) if until_ns is None or ns < until_ns]
                story.output_tokens = len(story.token_times_ns)
                story.first_token_ns = story.token_times_ns[0] if story.token_times_ns else None
            story.doings = [
                d for d in story.doings if d.end_ns != OPEN_NS and (until_ns is None or d.end_ns < until_ns)
            ]
            yield story
        self.open.clear()

    @property
    def busy(self) -> bool:
        """Whether requests are under way or still to come."""
        return bool(self.open) or self._coming is not None

    def worker_ready(self, name: str, time_ns: int) -> None:
        """A worker takes requests from now on."""
        if name in self.prefill_workers:
            self.prefill_workers[name].up = True
            self.prefill_ready.append(self.prefill_workers[name])
        if name in self.decode_workers:
            self.decode_workers[name].up = True
            self.decode_ready.append(self.decode_workers[name])
        self.worker_changed(name, "ready", time_ns)

    def worker_changed(self, name: str, state: str, time_ns: int) -> None:
        """Tell whoever listens of a worker's life."""
        self._on_worker_change(WorkerChange(name, state, time_ns))

    # ----------------------------------------------------------------------------------------------- front end, router

    def _plan_arrival(self) -> None:
        self._coming = next(self._arrivals, None)
        if self._coming is not None:
            self.loop.at(self._coming.time_ns, self._arrived, self)

    def _arrived(self, _: object, time_ns: int) -> None:
        arrival = self._coming
        assert arrival is not None
        router = self.routers[arrival.number % len(self.routers)]
        story = Story(
            request_id=f"{self.run_label}-{arrival.number:07d}" if self.run_label else f"{arrival.number:07d}",
            number=arrival.number,
            model=self.cluster.model,
            run=self.run_label,
            frontend=router.name,
            frontend_host=router.host,
            arrival_ns=time_ns,
            first_token_ns=None,
            end_ns=None,
            outcome="in_flight",
            mode="unknown",
            input_tokens=arrival.input_tokens,
            output_tokens=0,
            cached_tokens=None,
            prefill_worker=None,
            decode_worker=None,
        )
        flight = Flight(arrival, story, router)
        flight.begin(CONTAINER, time_ns, router.name, router.host)
        self.open[flight] = None
        router.open += 1
        ready_ns = time_ns + self.costs.tokenise_ns + self.costs.tokenise_ns_per_token * arrival.input_tokens
        if arrival.invalid or not self._fits(arrival):
            self.loop.at(ready_ns, self._refused, flight)
        elif router.open > self.policy.most_open:
            self.loop.at(ready_ns, self._rejected, flight)
        else:
            if arrival.patience_ns is not None:
                self.loop.at(time_ns + arrival.patience_ns, self._cancelled, Deadline(flight))
            if self.policy.timeout_ns:
                self.loop.at(time_ns + self.policy.timeout_ns, self._timed_out, Deadline(flight))
            self.dispatch(flight, ready_ns)
        self._plan_arrival()

    def _fits(self, arrival: Arrival) -> bool:
        """Whether every worker could ever hold it."""
        size = self.cluster.block_size
        prompt, whole = -(-arrival.input_tokens // size), -(-(arrival.input_tokens + arrival.output_tokens) // size)
        return all((prompt if shape.role == "prefill" else whole) <= shape.blocks for shape in self.cluster.workers)

    def _refused(self, flight: Flight, time_ns: int) -> None:
        self._finish(flight, time_ns, "invalid", 400, "the prompt and the answer are longer than the model allows")

    def _rejected(self, flight: Flight, time_ns: int) -> None:
        self._finish(flight, time_ns, "rejected", 503, "too many requests are open")

    def dispatch(self, flight: Flight, time_ns: int) -> None:
        """Give a request to its router, which decides one at a time, first come, first served."""
        router = flight.router
        start_ns = max(time_ns, router.free_ns)
        end_ns = router.free_ns = start_ns + self.costs.route_ns
        flight.did("router_queue", time_ns, start_ns, router.name, router.host)
        flight.did("route", start_ns, end_ns, router.name, router.host)
        self.loop.at(end_ns, self._routed, flight)

    def _routed(self, flight: Flight, time_ns: int) -> None:
        router, policy = flight.router, self.policy
        if not self.prefill_ready or not self.decode_ready:
            self._no_worker(flight, time_ns)
            return
        arrive_ns = time_ns + self.costs.rpc_ns
        if policy.prefill_on_decode_below and (
            router.least_uncached(flight, self.prefill_ready, time_ns) < policy.prefill_on_decode_below
        ):
            flight.story.mode = "prefill_on_decode"
            self._choose_decode(flight, time_ns)
            self.loop.at(arrive_ns, self._at_decode, flight)
            return
        flight.story.mode = policy.mode  # an earlier attempt may have gone straight to D
        stage = "aggregated" if policy.mode == "aggregated" else "prefill"
        choice = router.choose_prefill(flight, self.prefill_ready, time_ns, stage)
        flight.chose(choice)
        flight.p = self.prefill_workers[choice.chosen]
        flight.story.prefill_worker = choice.chosen
        self.loop.at(arrive_ns, self._at_prefill, flight)
        if policy.mode == "overlapped":
            self._choose_decode(flight, time_ns)
            self.loop.at(arrive_ns, self._at_decode, flight)

    def _choose_decode(self, flight: Flight, time_ns: int) -> None:
        choice = flight.router.choose_decode(flight, self.decode_ready, time_ns)
        flight.chose(choice)
        flight.d = self.decode_workers[choice.chosen]
        flight.story.decode_worker = choice.chosen

    def _no_worker(self, flight: Flight, time_ns: int) -> None:
        route = next(doing for doing in reversed(flight.story.doings) if doing.stage == "route")
        route.failed = "no worker is ready"
        self.fail(flight, time_ns, "failed_route", "no worker is ready")

    # ------------------------------------------------------------------------------------------------------------ P

    def _at_prefill(self, flight: Flight, time_ns: int) -> None:
        p = flight.p
        assert p is not None
        if not p.up:
            self.try_again(
                flight, time_ns, "failed_prefill", "the prefill worker cannot be reached", self.costs.detect_ns
            )
        elif self.policy.mode == "overlapped" and not flight.shaken:
            flight.wait("bootstrap", time_ns, p.name, p.host)
        else:
            flight.wait("prefill_queue", time_ns, p.name, p.host)
            p.submit(flight, time_ns)

    def _shaken(self, flight: Flight, time_ns: int) -> None:
        """P learns that D has room for what it will send."""
        flight.shaken = True
        p = flight.p
        assert p is not None
        if p.name in flight.waits:  # else the request is not there yet
            flight.waited(p.name, time_ns)
            flight.wait("prefill_queue", time_ns, p.name, p.host)
            p.submit(flight, time_ns)

    def prefill_began(self, flight: Flight, time_ns: int) -> None:
        """P: its first chunk is in the step that begins now."""
        p = flight.p
        assert p is not None
        flight.waited(p.name, time_ns)
        stage = "recompute" if flight.computed_before else "prefill"
        flight.prefill = flight.begin(stage, time_ns, p.name, p.host)
        cached = flight.found * self.cluster.block_size
        flight.story.cached_tokens = cached
        flight.prefill.detail = {
            "prompt_tokens": flight.prompt_tokens,
            "cached_tokens": cached,
            "cached_by_tier": {"device": cached},
        }
        if self.policy.mode == "overlapped" and self.policy.streaming == "layerwise":
            first_layer_ns = max(1, self.costs.prefill_step_ns // self.costs.layers)
            self.loop.at(time_ns + first_layer_ns, self.handoff.first_layer, flight)

    def chunk_computed(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """P: a chunk is done, others of the prompt are not."""
        if self.policy.mode == "overlapped" and self.policy.streaming == "chunked":
            self.handoff.chunk(flight, tokens, time_ns, last=False)

    def prefill_done(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """P: the last chunk is done."""
        p = flight.p
        assert p is not None
        assert flight.prefill is not None
        flight.prefill.end_ns = time_ns
        flight.computed = True
        for router in self.routers:
            router.heard(p.name, flight.arrival.blocks, time_ns)
        if self.policy.mode == "aggregated":
            self._prefilled_here(flight, p, time_ns)
            return
        doing = flight.begin(KV_HOLD, time_ns, p.name, p.host)
        doing.detail = {"bytes": self.handoff.bytes_of(flight.prompt_tokens), "released_by": ""}
        hold = flight.hold = Hold(flight, p, doing)
        p.holding[hold] = None
        flight.holds_open += 1
        if self.policy.mode == "overlapped":
            self.handoff.computed(flight, tokens, time_ns)
        else:
            self.loop.at(time_ns + self.policy.lease_ns, self.lease_ended, hold)
            self.loop.at(time_ns + self.costs.rpc_ns, self._prefill_answered, flight)

    def _prefilled_here(self, flight: Flight, p: PrefillWorker, time_ns: int) -> None:
        """Aggregated: the prompt's last step gives the first token; the rest is decoded on the same worker."""
        p.release(flight.arrival.blocks, flight.block_count, time_ns)
        flight.router.prompt_left(flight)
        flight.p = None
        flight.tokens.append(time_ns + self._way_back_ns)
        flight.first_end_ns = time_ns
        flight.story.decode_worker = p.name
        if len(flight.tokens) == flight.arrival.output_tokens:
            self.loop.at(time_ns + self._way_back_ns, self._answered, flight)
            return
        flight.d = self.decode_workers[p.name]
        flight.router.sent_to_decode(flight)
        self._at_decode(flight, time_ns)

    def _prefill_answered(self, flight: Flight, time_ns: int) -> None:
        """Sequential: P's answer is at the front end; now D is chosen and called."""
        flight.router.prompt_left(flight)
        end_ns = time_ns + self.costs.route_ns // 2
        flight.did("route", time_ns, end_ns, flight.router.name, flight.router.host)
        self.loop.at(end_ns, self._routed_to_decode, flight)

    def _routed_to_decode(self, flight: Flight, time_ns: int) -> None:
        if not self.decode_ready:
            self._no_worker(flight, time_ns)
            return
        self._choose_decode(flight, time_ns)
        self.loop.at(time_ns + self.costs.rpc_ns, self._at_decode, flight)

    def lease_ended(self, hold: Hold, time_ns: int) -> None:
        """P has waited long enough for D."""
        self.release(hold, time_ns, "timeout")

    def release(self, hold: Hold, time_ns: int, released_by: str) -> None:
        """P gives a request's state up."""
        flight = hold.flight
        hold.generation += 1
        hold.doing.end_ns = time_ns
        hold.doing.detail["released_by"] = released_by
        if flight.hold is hold:
            flight.hold = None
        flight.holds_open -= 1
        del hold.worker.holding[hold]
        hold.worker.release(flight.arrival.blocks, hold.block_count, time_ns)
        self._tell(flight)

    # ------------------------------------------------------------------------------------------------------------ D

    def _at_decode(self, flight: Flight, time_ns: int) -> None:
        d = flight.d
        assert d is not None
        if not d.up:
            self.try_again(
                flight, time_ns, "failed_decode", "the decode worker cannot be reached", self.costs.detect_ns
            )
            return
        flight.wait("decode_queue", time_ns, d.name, d.host)
        d.reserve(flight, time_ns)

    def reserved(self, flight: Flight, time_ns: int) -> None:
        """D: it has room."""
        d = flight.d
        assert d is not None
        mode = flight.story.mode
        if mode == "aggregated":
            d.join(flight, flight.arrival.output_tokens - len(flight.tokens), time_ns)
            return
        flight.waited(d.name, time_ns)
        if mode == "prefill_on_decode":
            self.compute_on_decode(flight, "recompute" if flight.computed_before else "prefill", time_ns)
        elif mode == "overlapped":
            self.loop.at(time_ns + self.costs.rpc_ns, self._shaken, flight)
        else:
            self.handoff.pull(flight, time_ns)

    def compute_on_decode(self, flight: Flight, stage: str, time_ns: int) -> None:
        """D computes the prompt itself, when it has done those before."""
        d = flight.d
        assert d is not None
        start_ns, end_ns = d.compute_prompt(flight.prompt_tokens, time_ns)
        flight.did("decode_queue", time_ns, start_ns, d.name, d.host)
        doing = flight.begin(stage, start_ns, d.name, d.host)
        doing.end_ns = end_ns
        doing.detail = {"prompt_tokens": flight.prompt_tokens, "cached_tokens": 0, "cached_by_tier": {"device": 0}}
        self.loop.at(end_ns, self.state_ready, flight)

    def state_ready(self, flight: Flight, time_ns: int) -> None:
        """D has the prompt's state: the request joins the batch at its next step."""
        d = flight.d
        assert d is not None
        flight.computed = True
        flight.wait("decode_queue", time_ns, d.name, d.host)
        d.join(flight, flight.arrival.output_tokens - len(flight.tokens), time_ns)

    def joined(self, flight: Flight, time_ns: int, first_end_ns: int) -> None:
        """D: its first step here begins now."""
        d = flight.d
        assert d is not None
        flight.waited(d.name, time_ns)
        if flight.story.mode == "aggregated":
            flight.first_end_ns = time_ns  # the prompt's last step gave its first token
        else:
            flight.did("first_token", time_ns, first_end_ns, d.name, d.host)

    def decoded(self, flight: Flight, time_ns: int) -> None:
        """D: its last token is there."""
        d = flight.d
        assert d is not None
        flight.tokens += d.token_times(flight, time_ns, self._way_back_ns)
        flight.did(DECODE, flight.first_end_ns, time_ns, d.name, d.host)
        flight.router.decode_left(flight)
        flight.d = None
        d.leave(flight, time_ns)
        self.loop.at(time_ns + self._way_back_ns, self._answered, flight)

    # ----------------------------------------------------------------------------------------------------------- ends

    def _answered(self, flight: Flight, time_ns: int) -> None:
        self._finish(flight, time_ns, "ok_fallback" if flight.fell_back else "ok", 200, "")

    def _cancelled(self, deadline: Deadline, time_ns: int) -> None:
        flight = deadline.flight
        if not flight.closed:
            self.take_off(flight, time_ns, "", "cancel")
            self._finish(flight, time_ns, "cancelled", 499, "the client went away")

    def _timed_out(self, deadline: Deadline, time_ns: int) -> None:
        flight = deadline.flight
        if not flight.closed:
            self.take_off(flight, time_ns, "", "cancel")
            self._finish(flight, time_ns, "timed_out", 504, "the server's time limit for a request is over")

    def fail(self, flight: Flight, time_ns: int, outcome: str, text: str) -> None:
        """Give a request up."""
        self.take_off(flight, time_ns, "", "cancel")
        self._finish(flight, time_ns, outcome, 500, text)

    def try_again(self, flight: Flight, time_ns: int, outcome: str, text: str, after_ns: int) -> None:
        """End an attempt at its worker's fault; begin another after ``after_ns``, or give the request up."""
        flight.computed_before |= flight.computed or (flight.prefill is not None)
        self.take_off(flight, time_ns, text, "cancel")
        if flight.attempt + 1 < self.policy.most_attempts:
            flight.attempt += 1
            flight.story.attempts += 1
            flight.fell_back = True
            flight.prompt_tokens = flight.arrival.input_tokens + len(flight.tokens)
            self.loop.at(time_ns + after_ns, self.dispatch, flight)
        else:
            flight.story.error = text
            flight.story.outcome = outcome
            self.loop.at(time_ns + after_ns, self._given_up, flight)

    def _given_up(self, flight: Flight, time_ns: int) -> None:
        self._finish(flight, time_ns, flight.story.outcome, 500, flight.story.error)

    def take_off(self, flight: Flight, time_ns: int, text: str, released_by: str) -> None:
        """End a request's present attempt wherever it is; what was going on gets ``text`` as its failure."""
        flight.generation += 1
        flight.tokens = [ns for ns in self._tokens_so_far(flight) if ns - self._way_back_ns <= time_ns]
        if flight.joined:
            assert flight.d is not None
            flight.did(DECODE, flight.first_end_ns, time_ns, flight.d.name, flight.d.host)
        for flow in flight.flows:
            self.network.stop(flow)
        router, p, d, hold = flight.router, flight.p, flight.d, flight.hold
        router.prompt_left(flight)
        router.decode_left(flight)
        self._cut(flight, time_ns, text)
        at_p = flight.at_p
        if hold is not None:
            self.release(hold, time_ns, released_by)
        if at_p:
            assert p is not None
            p.drop(flight)
            p.kick(time_ns)
        if d is not None:
            d.leave(flight, time_ns)
        flight.reset()

    def _cut(self, flight: Flight, time_ns: int, text: str) -> None:
        """Nothing of this attempt goes on after ``time_ns``; state held on P and the front end are seen to elsewhere."""
        kept: list[Doing] = []
        for doing in flight.story.doings:
            if doing.stage in (CONTAINER, KV_HOLD) or OPEN_NS < doing.end_ns <= time_ns:
                kept.append(doing)
            elif doing.start_ns < time_ns:
                doing.end_ns = time_ns
                doing.failed = text
                doing.detail["cut"] = True  # it did not come to its own end: a first step that was cut gave no token
                if doing.stage == "handoff":
                    doing.detail["result"] = "abandoned"
                kept.append(doing)
        flight.story.doings = kept

    def _tokens_so_far(self, flight: Flight) -> list[int]:
        if flight.joined:
            assert flight.d is not None
            return flight.tokens + flight.d.token_times(flight, self.loop.now_ns, self._way_back_ns)
        return flight.tokens

    def _finish(self, flight: Flight, time_ns: int, outcome: str, status: int, error: str) -> None:
        flight.generation += 1
        flight.closed = True
        flight.router.open -= 1
        story = flight.story
        story.doings[0].end_ns = story.end_ns = time_ns
        tokens = flight.tokens
        while tokens and tokens[-1] > time_ns:  # on the way to a client that is not there any more
            tokens.pop()
        story.token_times_ns = tokens
        story.output_tokens = len(tokens)
        story.first_token_ns = tokens[0] if tokens else None
        story.outcome, story.error = outcome, error
        # Once an answer has begun, its status was sent.
        story.http_status = 200 if tokens else status
        self._tell(flight)

    def _tell(self, flight: Flight) -> None:
        """The story is told when the front end and every worker are done with the request."""
        if flight.closed and not flight.holds_open:
            del self.open[flight]
            self._told.append(flight.story)
