"""The transfers of a story as SGLang's mooncake senders tell them: a trace of its own for each rank.

Owns the choice of what was sent when, and the senders' traces. Source: capture pd_e2e_router_plus_sglang.

    Sender Req 0x<room>                      rank's own trace  |-----------------------|
      mooncake transfer worker 0 [TP r]                         |---------------------|
        mooncake_worker_send                                    |---|   |---|    |----|
          mooncake_worker_send_session                          |--|    |--|     |---|
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from pdtrace.simulate.emit.otlp import Ids, Process, Processes, Value
from pdtrace.simulate.emit.visits import Visit
from pdtrace.simulate.story import ClusterFacts, Doing

SCOPE: Final = "sglang server"
SDK: Final[dict[str, Value]] = {
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "service.name": "sglang",
}


class LastSend(NamedTuple):
    """The last piece of a request's state that was moved, in true time."""

    start_ns: int
    end_ns: int
    failed: str


def moves_of(visit: Visit, visits: Iterable[Visit]) -> list[Doing]:
    """Handoffs of the attempt that ``visit`` is part of: the sender's word where it told, else the receiver's."""
    told = [doing for each in visits if each.attempt == visit.attempt for doing in each.all("handoff")]
    sent = [doing for doing in told if doing.side == "source"]
    return sorted(sent or told, key=lambda doing: (doing.start_ns, doing.end_ns))


def last_send(visit: Visit, visits: Iterable[Visit]) -> LastSend | None:
    """The handoff that ended last; None if nothing was moved."""
    moved = moves_of(visit, visits)
    if not moved:
        return None
    last = max(moved, key=lambda doing: doing.end_ns)
    return LastSend(last.start_ns, last.end_ns, next((doing.failed for doing in moved if doing.failed), ""))


def tell_sends(
    processes: Processes, ids: Ids, cluster: ClusterFacts, visit: Visit, visits: Iterable[Visit], room: int
) -> None:
    """One trace for each rank that sent; what failed sends no slice."""
    moved = [doing for doing in moves_of(visit, visits) if not doing.failed]
    for rank in range(max(1, cluster.workers[visit.worker].tp)):
        own = [doing for doing in moved if doing.rank in ("", str(rank), f"tp{rank}")]
        if own:
            resource: dict[str, Value] = {**SDK, "service.instance.id": f"{visit.worker}-tp{rank}"}
            _tell_rank(
                processes.get(f"scheduler {visit.worker} {rank}", resource, SCOPE), ids, cluster, visit, room, rank, own
            )


def _tell_rank(
    spans: Process, ids: Ids, cluster: ClusterFacts, visit: Visit, room: int, rank: int, moved: list[Doing]
) -> None:
    def at(true_ns: int) -> int:
        return cluster.stamp(visit.host, true_ns)

    trace = bytes(8) + ids.span()  # SGLang's own trace ids have 64 bits
    root, thread = ids.span(), ids.span()
    start, end = at(moved[0].start_ns), at(max(doing.end_ns for doing in moved))
    room_text, host = hex(room), host_id(visit.host)
    named: dict[str, Value] = {"rid": room_text, "module": "sglang::mooncake", "bootstrap_room": room_text}
    spans.span(f"Sender Req {room_text[:8]}", start, end, trace=trace, span=root, flags=256, attributes=named)
    label, pid = "mooncake transfer worker 0", thread_id(f"{visit.worker} sender {rank}")
    place: dict[str, Value] = {"tp_rank": rank, "host_id": host, "pid": pid, "thread_label": label}
    spans.span(
        f"{label} [TP {rank}] (host:{host[:8]} | pid:{pid})",
        start,
        end,
        trace=trace,
        span=thread,
        parent=root,
        flags=256,
        attributes=place,
    )
    for doing in moved:
        send = ids.span()
        for name, parent, span in (
            ("mooncake_worker_send", thread, send),
            ("mooncake_worker_send_session", send, ids.span()),
        ):
            spans.span(name, at(doing.start_ns), at(doing.end_ns), trace=trace, span=span, parent=parent, flags=256)


def host_id(host: str) -> str:
    """SGLang's ``host_id``: a machine id, 32 hex digits."""
    return blake2b(host.encode(), digest_size=16).hexdigest()


def thread_id(thread: str) -> int:
    """What SGLang calls ``pid``: a native thread id, the same for the same thread."""
    return 1_000 + int.from_bytes(blake2b(thread.encode(), digest_size=2).digest(), "big")
