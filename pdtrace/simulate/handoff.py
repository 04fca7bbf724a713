"""State on its way from P to D: pulled, pushed, streamed chunk by chunk or layer by layer.

Owns when which bytes move and what becomes of the handoff. Bandwidth is the network's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdtrace.simulate.flight import Flight
from pdtrace.simulate.story import Doing

if TYPE_CHECKING:
    from pdtrace.simulate.engine import Simulation
    from pdtrace.simulate.network import Flow


class _Chunk:
    """One chunk's transfer; its generation never rises, the flight's does."""

    __slots__ = ("doing", "flight", "flight_generation", "flow", "generation")

    def __init__(self, flight: Flight, doing: Doing) -> None:
        self.flight = flight
        self.flight_generation = flight.generation
        self.doing = doing
        self.flow: Flow | None = None
        self.generation = 0


class Handoff:
    """The handoffs of one simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._costs = simulation.costs
        self._latency_ns = simulation.cluster.links.latency_ns
        self.failing_share = 0.0

    def bytes_of(self, tokens: int) -> int:
        """All state of a prompt."""
        return sum(self._state_bytes(tokens, whole=True).values())

    def _state_bytes(self, tokens: int, *, whole: bool) -> dict[str, int]:
        state = {kind: size * tokens for kind, size in self._costs.state_bytes_per_token}
        if whole:
            state |= dict(self._costs.state_bytes)
        return state

    # ------------------------------------------------------------------------------------------------ when what moves

    def pull(self, flight: Flight, time_ns: int) -> None:
        """Sequential: D has room and reads from P, if P still has it."""
        hold = flight.hold
        if hold is not None:
            hold.generation += 1  # the lease does not end while somebody reads
            self._send(flight, flight.prompt_tokens, time_ns, side="destination", whole=True)
            return
        self._send(flight, 0, time_ns, side="destination", whole=False)
        doing = flight.handoffs[0]
        doing.detail["result"] = "transport_error" if flight.lost else "expired"
        doing.failed = flight.lost or "the lease has expired"
        self._simulation.loop.at(time_ns + 2 * self._latency_ns, self._refused, flight)

    def chunk(self, flight: Flight, tokens: int, time_ns: int, *, last: bool) -> None:
        """Overlapped, chunk by chunk: a chunk is pushed when it is computed; the first takes what P found cached."""
        if not flight.chunks:
            tokens += flight.found * self._simulation.cluster.block_size
        self._send(flight, tokens, time_ns, side="source", whole=last)

    def first_layer(self, flight: Flight, time_ns: int) -> None:
        """Overlapped, layer by layer: the first layer is computed, from now on state streams."""
        self._send(flight, flight.prompt_tokens, time_ns, side="source", whole=True)

    def computed(self, flight: Flight, tokens: int, time_ns: int) -> None:
        """Overlapped: the prompt is computed."""
        streaming = self._simulation.policy.streaming
        if streaming == "after":
            self._send(flight, flight.prompt_tokens, time_ns, side="source", whole=True)
        elif streaming == "chunked":
            self.chunk(flight, tokens, time_ns, last=True)
        elif not flight.flows:  # all layers but the last were through before; its own bytes still have to move
            self._simulation.loop.at(time_ns + self._last_layer_ns(flight), self._arrived, flight)

    def _last_layer_ns(self, flight: Flight) -> int:
        assert flight.p is not None
        assert flight.d is not None
        speed = self._simulation.network.gb_per_s(flight.p.host, flight.d.host)
        return round(self.bytes_of(flight.prompt_tokens) / self._costs.layers / speed) + self._latency_ns

    def _send(self, flight: Flight, tokens: int, time_ns: int, *, side: str, whole: bool) -> None:
        p, d, simulation = flight.p, flight.d, self._simulation
        assert p is not None
        assert d is not None
        worker = p if side == "source" else d
        state = self._state_bytes(tokens, whole=whole)
        doing = flight.begin("handoff", time_ns, worker.name, worker.host)
        doing.side = side
        chunked = simulation.policy.mode == "overlapped" and simulation.policy.streaming == "chunked"
        doing.chunk = str(flight.chunks) if chunked else ""
        doing.detail = {
            "bytes": sum(state.values()),
            "states": list(state),
            "state_bytes": list(state.values()),
            "src": p.name,
            "dst": d.name,
            "backend": simulation.policy.backend,
            "path": simulation.network.path(p.host, d.host),
            "mode": simulation.policy.mode,
            "result": "hit",
            "ranks": d.shape.tp,
        }
        if side == "destination":
            doing.detail["lease_ms"] = simulation.policy.lease_ns // 1_000_000
        flight.handoffs.append(doing)
        flight.chunks += 1
        if tokens:
            chunk = _Chunk(flight, doing)
            chunk.flow = simulation.network.start(p.host, d.host, doing.detail["bytes"], self._through, chunk)
            flight.flows.append(chunk.flow)

    # --------------------------------------------------------------------------------------------- what becomes of it

    def _through(self, chunk: _Chunk, time_ns: int) -> None:
        """The last byte has left; it is there a little later."""
        self._simulation.loop.at(time_ns + self._latency_ns, self._chunk_arrived, chunk)

    def _chunk_arrived(self, chunk: _Chunk, time_ns: int) -> None:
        flight = chunk.flight
        if chunk.flight_generation != flight.generation:
            return  # the attempt is over
        assert chunk.flow is not None
        flight.flows.remove(chunk.flow)
        if chunk.doing.chunk:
            self._close(flight, chunk.doing, time_ns)
        if not flight.computed or flight.flows:
            return  # streamed ahead of the computation, or other chunks are still on their way
        if self._simulation.policy.streaming == "layerwise" and flight.story.mode == "overlapped":
            assert flight.prefill is not None
            least_ns = flight.prefill.end_ns + self._last_layer_ns(flight)
            self._simulation.loop.at(max(time_ns, least_ns), self._arrived, flight)
        else:
            self._arrived(flight, time_ns)

    def _close(self, flight: Flight, doing: Doing, time_ns: int) -> None:
        doing.end_ns = time_ns
        flight.handoffs.remove(doing)
        self._spread(flight, doing)

    def _arrived(self, flight: Flight, time_ns: int) -> None:
        """All state is on D, or known not to come."""
        failing = flight.arrival.luck < self.failing_share
        if failing:
            for doing in flight.handoffs:
                doing.detail["result"] = "transport_error"
                doing.failed = "the transfer failed"
            if not flight.handoffs:  # chunks are closed already: the last one is the one that failed
                last = next(d for d in reversed(flight.story.doings) if d.stage == "handoff")
                last.detail["result"], last.failed = "transport_error", "the transfer failed"
        self._finished(flight, time_ns, failed="the transfer failed" if failing else "")

    def _refused(self, flight: Flight, time_ns: int) -> None:
        self._finished(flight, time_ns, failed=flight.handoffs[0].failed)

    def lost(self, flight: Flight, time_ns: int, text: str) -> None:
        """P went away while it sent."""
        for flow in flight.flows:
            self._simulation.network.stop(flow)
        flight.flows.clear()
        # What was planned for the transfer is void. A deadline has its own subject; nothing else is planned now.
        flight.generation += 1
        for doing in flight.handoffs:
            doing.detail["result"], doing.failed = "transport_error", text
        if flight.hold is not None:
            self._simulation.release(flight.hold, time_ns, "eviction")
        self._finished(flight, time_ns, failed=text)

    def _finished(self, flight: Flight, time_ns: int, failed: str) -> None:
        simulation = self._simulation
        for doing in flight.handoffs[:]:
            self._close(flight, doing, time_ns)
        hold = flight.hold
        if hold is not None:
            flight.hold = None
            if hold.worker.name in simulation.leaking:
                until_ns = max(time_ns, hold.doing.start_ns + simulation.policy.lease_ns)
                simulation.loop.at(until_ns, simulation.lease_ended, hold)
            else:
                simulation.release(hold, time_ns, "cancel" if failed else "pull")
        flight.router.prompt_left(flight)
        if not failed:
            simulation.state_ready(flight, time_ns)
        elif simulation.policy.on_lost_state == "recompute":
            flight.fell_back = True
            simulation.compute_on_decode(flight, "recompute", time_ns)
        else:
            simulation.fail(flight, time_ns, "failed_handoff", failed)

    def _spread(self, flight: Flight, doing: Doing) -> None:
        """Tell a transfer rank by rank: the first rank begins it, the last one ends it, each moves its part."""
        ranks = doing.detail["ranks"]
        if ranks < 2:
            return
        length_ns = doing.end_ns - doing.start_ns
        step_ns = length_ns // (8 * ranks)
        start_ns, end_ns, detail = doing.start_ns, doing.end_ns, doing.detail
        for rank in range(ranks):
            part = doing if rank == 0 else flight.begin("handoff", 0, doing.worker, doing.host)
            part.rank, part.chunk, part.side, part.failed = str(rank), doing.chunk, doing.side, doing.failed
            part.start_ns = start_ns + rank * step_ns
            part.end_ns = end_ns - (ranks - 1 - rank) * step_ns
            part.detail = _part(detail, rank, ranks)


def _part(detail: dict[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """What one rank moves; the first takes what does not divide."""
    sizes = [size // ranks + (size % ranks if rank == 0 else 0) for size in detail["state_bytes"]]
    return {**detail, "state_bytes": sizes, "bytes": sum(sizes)}
