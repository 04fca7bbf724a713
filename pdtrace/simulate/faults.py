"""Causes at work: what changes in a running simulation, and the autoscaler that answers.

Owns the moment and the mechanics of a change. What it does to requests is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable

from pdtrace.simulate.causes import (
    Cause,
    ChangeKnowledge,
    Drain,
    FailTransfers,
    LeakHolds,
    LoseRemovals,
    Restart,
    SlowLink,
)
from pdtrace.simulate.cluster import Autoscale
from pdtrace.simulate.engine import Simulation


class _Plan:
    """Something that is to happen once."""

    __slots__ = ("call", "generation")

    def __init__(self, call: Callable[[int], None]) -> None:
        self.call = call
        self.generation = 0


def plan(simulation: Simulation, time_ns: int, call: Callable[[int], None]) -> None:
    """Call ``call(time_ns)`` at a true time."""
    simulation.loop.at(time_ns, _happen, _Plan(call))


def _happen(what: _Plan, time_ns: int) -> None:
    what.call(time_ns)


def plan_cause(simulation: Simulation, cause: Cause, onset_ns: int) -> None:
    """Let a cause set in at a true time."""
    plan(simulation, onset_ns, lambda time_ns: _set_in(simulation, cause, time_ns))


def _set_in(simulation: Simulation, cause: Cause, time_ns: int) -> None:
    match cause:
        case SlowLink():
            simulation.network.change_link(cause.source, cause.destination, cause.gb_per_s, cause.path)
        case LoseRemovals():
            for router in simulation.routers:
                for worker in simulation.prefill_workers.values():
                    router.lose_removals(worker, time_ns, simulation.ever_stored)
        case ChangeKnowledge():
            for router in simulation.routers:
                router.knowledge = cause.knowledge
        case LeakHolds():
            simulation.leaking.add(cause.worker)
        case FailTransfers():
            simulation.handoff.failing_share = cause.share
        case Drain():
            for name in cause.workers:
                _leave(simulation, name)
                simulation.worker_changed(name, "draining", time_ns)
        case Restart():
            _restart(simulation, cause, time_ns, 1)


def _leave(simulation: Simulation, name: str) -> None:
    """Routers choose this worker no more; what is on it stays."""
    simulation.prefill_ready[:] = [worker for worker in simulation.prefill_ready if worker.name != name]
    simulation.decode_ready[:] = [worker for worker in simulation.decode_ready if worker.name != name]


def _restart(simulation: Simulation, cause: Restart, time_ns: int, turn: int) -> None:
    """A process ends with all it had; its requests begin again elsewhere; a new one comes up with nothing cached."""
    name = cause.worker
    simulation.worker_changed(name, "dead", time_ns)
    if name in simulation.prefill_workers:
        _stop_prefill(simulation, name, time_ns)
    if name in simulation.decode_workers:
        _stop_decode(simulation, name, time_ns)
    detected_ns = time_ns + simulation.costs.detect_ns
    ready_ns = max(time_ns + cause.down_ns, detected_ns)
    plan(simulation, detected_ns, lambda _now_ns: _leave(simulation, name))
    plan(simulation, detected_ns, lambda now_ns: simulation.worker_changed(name, "starting", now_ns))
    plan(simulation, ready_ns, lambda now_ns: simulation.worker_ready(name, now_ns))
    if cause.every_ns and turn < cause.times:
        plan(simulation, time_ns + cause.every_ns, lambda now_ns: _again(simulation, cause, now_ns, turn + 1))


def _again(simulation: Simulation, cause: Restart, time_ns: int, turn: int) -> None:
    if simulation.busy:
        _restart(simulation, cause, time_ns, turn)


def _stop_prefill(simulation: Simulation, name: str, time_ns: int) -> None:
    worker = simulation.prefill_workers[name]
    worker.up = False
    text = f"prefill worker {name} restarted"
    for router in simulation.routers:
        if router.knowledge == "events":
            router.lose_removals(worker, time_ns)
    for flight in worker.in_work():
        simulation.try_again(flight, time_ns, "failed_prefill", text, simulation.costs.detect_ns)
    for hold in list(worker.holding):
        flight = hold.flight
        if flight.hold is not hold:  # leaked: its request has long been served
            simulation.release(hold, time_ns, "eviction")
        elif flight.handoffs:
            simulation.handoff.lost(flight, time_ns, text)
        else:
            flight.lost = text
            simulation.release(hold, time_ns, "eviction")
    worker.stop()


def _stop_decode(simulation: Simulation, name: str, time_ns: int) -> None:
    worker = simulation.decode_workers[name]
    worker.up = False
    text = f"decode worker {name} restarted"
    for flight in [*worker.present, *worker.wanting()]:
        simulation.try_again(flight, time_ns, "failed_decode", text, simulation.costs.detect_ns)
    worker.stop()


def plan_autoscale(simulation: Simulation, scale: Autoscale, start_ns: int) -> None:
    """Look at the prefill queues now and then; start a spare worker when too many wait."""
    spare = [shape.name for shape in simulation.cluster.workers if shape.spare]
    starting: list[str] = []

    def look(time_ns: int) -> None:
        ready = simulation.prefill_ready
        waiting = sum(worker.waiting_count for worker in ready)
        if spare and not starting and waiting > scale.waiting * max(1, len(ready)):
            name = spare.pop(0)
            starting.append(name)
            simulation.worker_changed(name, "starting", time_ns)
            plan(simulation, time_ns + scale.start_up_ns, come)
        if simulation.busy:
            plan(simulation, time_ns + scale.check_ns, look)

    def come(time_ns: int) -> None:
        simulation.worker_ready(starting.pop(), time_ns)

    plan(simulation, start_ns + scale.check_ns, look)
