"""Stories through pdtrace's own instrumentation: one recorder for each simulated process, on its host's clock.

Owns which process says what, and the names of what a story knows beyond times. Does not encode: the recorder does.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pdtrace.instrumentation import Record, Recorder, Resource
from pdtrace.instrumentation.record import seed_ids
from pdtrace.simulate.emit.contract import Sink
from pdtrace.simulate.story import CONTAINER, ClusterFacts, Doing, RouteChoice, Story

#: Records of one process that wait for each other's company.
_MOST_WAITING: Final = 1_000
#: What a doing may know, as attributes of its span.
_PASS_NAMES: Final = {"prompt_tokens": "pdtrace.prompt_tokens", "cached_tokens": "pdtrace.cached_tokens"}
_TIERS: Final = ("device", "host", "disk", "external")
_HANDOFF_NAMES: Final = (
    "backend", "path", "mode", "result", "bytes", "states", "state_bytes", "src", "dst", "ranks", "lease_ms",
)  # fmt: skip
_HOLD_NAMES: Final = ("bytes", "released_by")


class SimulatedClock:
    """A host's clock: stamps are true time, Unix time is what the host believes."""

    def __init__(self, cluster: ClusterFacts, host: str) -> None:
        self._cluster = cluster
        self._host = host
        self.true_ns = 0  #: the present of the simulation

    def now_ns(self) -> int:
        """True time."""
        return self.true_ns

    def wall_ns(self, now_ns: int) -> int:
        """Unix ns on the host's clock at a true time."""
        return self._cluster.stamp(self._host, now_ns)


class _SinkExporter:
    """Hands what a recorder encoded to a sink."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def export(self, signal: Literal["traces", "logs", "metrics"], body: bytes) -> int | None:
        if signal == "traces":
            self._sink.traces(body)
        elif signal == "logs":
            self._sink.logs(body)
        return None  # a simulation loses nothing: the recorders' own counters are of no interest

    def close(self) -> None:
        """The sink is closed by the emitter: many recorders share it."""


class NativeEmitter:
    """Tells stories through pdtrace's own instrumentation.

    Args:
        sink: Where bodies go.
        cluster: Clocks and workers.
        seed: With the run's label it decides the recorders' ids.
    """

    def __init__(self, sink: Sink, cluster: ClusterFacts, seed: int) -> None:
        self._sink = sink
        self._cluster = cluster
        self._seed = seed
        self._exporter = _SinkExporter(sink)
        self._recorders: dict[str, tuple[Recorder, SimulatedClock]] = {}
        self._run = ""
        self._waiting = 0

    def emit(self, story: Story) -> None:
        """Tell one request; a front end that still has it has exported nothing of it."""
        if story.run != self._run:
            self._run = story.run
            seed_ids(f"{self._seed}/{story.run}")  # scenarios of one seed must not share trace ids
        edge = self._begin(story, story.frontend, 0, story.arrival_ns, edge=True)
        records: dict[tuple[str, int], Record] = {}
        for doing in sorted(story.doings, key=lambda d: (d.start_ns, d.end_ns)):
            if doing.stage == CONTAINER:
                continue  # the root span
            if doing.worker in ("", story.frontend):
                record = edge
            else:
                of = (doing.worker, doing.attempt)
                if of not in records:
                    records[of] = self._begin(
                        story, doing.worker, doing.attempt, doing.start_ns, traceparent=edge.traceparent
                    )
                record = records[of]
            record.add(
                doing.stage,
                doing.start_ns,
                doing.end_ns,
                _attributes(doing, story),
                attempt=doing.attempt,
                failed=doing.failed or _cut_short(doing),
            )
        for (worker, _), record in records.items():
            self._at(worker, max(d.end_ns for d in story.doings if d.worker == worker))
            record.finish()
        if story.end_ns is not None:
            self._finish(story, edge)
        self._waiting += 1
        if self._waiting >= _MOST_WAITING:
            self.flush()

    def _begin(self, story: Story, process: str, attempt: int, at_ns: int, **more: Any) -> Record:
        recorder, clock = self._process(process)
        clock.true_ns = at_ns
        return recorder.begin(story.request_id, attempt=attempt, at_ns=at_ns, **more)

    def _finish(self, story: Story, edge: Record) -> None:
        assert story.end_ns is not None
        edge.set("gen_ai.request.model", story.model)
        edge.set("gen_ai.usage.input_tokens", story.input_tokens)
        edge.set("gen_ai.usage.output_tokens", story.output_tokens)
        if story.http_status is not None:
            edge.set("http.response.status_code", story.http_status)
        if story.first_token_ns is not None:
            edge.first_token(story.first_token_ns)
        for at_ns in story.token_times_ns:
            edge.tokens(1, at_ns)
        self._at(story.frontend, story.end_ns)
        edge.finish(story.outcome, story.error, story.end_ns)

    def worker_state(self, worker: str, state: str, true_ns: int) -> None:
        """Tell it as the worker's own log record, stamped by its host."""
        recorder, clock = self._process(worker)
        clock.true_ns = true_ns
        recorder.worker_state(state)

    def worker_name(self, worker: str) -> str:
        """``service.instance.id`` of a worker: the worker's own name."""
        return worker

    def flush(self) -> None:
        """Export what every recorder has."""
        self._waiting = 0
        for recorder, _ in self._recorders.values():
            recorder.flush()

    def close(self) -> None:
        """``flush``, then shut the recorders down and close the sink."""
        self.flush()
        for recorder, _ in self._recorders.values():
            recorder.shutdown()
        self._sink.close()

    def _at(self, process: str, true_ns: int) -> None:
        self._process(process)[1].true_ns = true_ns

    def _process(self, name: str) -> tuple[Recorder, SimulatedClock]:
        known = self._recorders.get(name)
        if known is None:
            facts = self._cluster.workers[name]
            clock = SimulatedClock(self._cluster, facts.host)
            resource = Resource(
                service_name=f"sim-{facts.role}",
                instance_id=name,
                host_name=facts.host,
                role=facts.role,
                pool=facts.pool,
                gpus=facts.gpus,
                gpu_type=facts.gpu_type,
                tp=facts.tp,
                run=self._run,
            )
            recorder = Recorder(resource, self._exporter, capacity=2 * _MOST_WAITING + 1, clock=clock, background=False)
            known = self._recorders[name] = (recorder, clock)
        return known


def _cut_short(doing: Doing) -> str:
    """A first step that was given up made no token; of other stages the end alone says enough."""
    return "given up before it made a token" if doing.stage == "first_token" and doing.detail.get("cut") else ""


def _attributes(doing: Doing, story: Story) -> dict[str, Any]:
    """Attributes of one stage span."""
    detail = doing.detail
    if doing.stage == "route":
        choice = _choice_of(doing, story)
        return {} if choice is None else _choice_attributes(choice)
    if doing.stage in ("prefill", "recompute"):
        found = {name: detail[key] for key, name in _PASS_NAMES.items() if detail.get(key) is not None}
        by_tier = detail.get("cached_by_tier") or {}
        return found | {f"pdtrace.cached_tokens.{tier}": by_tier[tier] for tier in _TIERS if tier in by_tier}
    if doing.stage == "handoff":
        found = {f"pdtrace.handoff.{name}": detail[name] for name in _HANDOFF_NAMES if detail.get(name) is not None}
        if doing.rank:
            found["pdtrace.handoff.rank"] = doing.rank
        return found
    if doing.stage == "kv_hold":
        return {f"pdtrace.hold.{name}": detail[name] for name in _HOLD_NAMES if detail.get(name) is not None}
    return {}


def _choice_of(route: Doing, story: Story) -> RouteChoice | None:
    """The decision that was made in a route span."""
    inside = [
        choice
        for choice in story.choices
        if choice.attempt == route.attempt and route.start_ns <= choice.time_ns <= route.end_ns
    ]
    wanted = route.detail.get("stage")
    return next((choice for choice in inside if choice.stage == wanted), inside[0] if inside else None)


def _choice_attributes(choice: RouteChoice) -> dict[str, Any]:
    return {
        "pdtrace.router.stage": choice.stage,
        "pdtrace.router.mode": choice.mode,
        "pdtrace.router.chosen": choice.chosen,
        "pdtrace.router.candidates": list(choice.candidates),
        "pdtrace.router.overlap_tokens": list(choice.overlap_tokens),
        "pdtrace.router.cost": list(choice.cost),
        "pdtrace.router.predicted_queue_ms": list(choice.predicted_queue_ms),
        "pdtrace.router.predicted_prefill_ms": list(choice.predicted_prefill_ms),
        "pdtrace.router.predicted_transfer_ms": list(choice.predicted_transfer_ms),
        "pdtrace.router.block_size": choice.block_size,
        "pdtrace.router.reason": choice.reason,
    }
