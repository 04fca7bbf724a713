"""What an engine's calls become: stages of P, of D and of the handoff between them, to the nanosecond."""

from __future__ import annotations

import threading

import pytest

from pdtrace.instrumentation import NO_RECORD
from pdtrace.instrumentation.engine import Cached, DecodeSide, Handoff, PrefillSide
from tests.instrumentation.reading import T0, Worker, stages


def test_prefill_side() -> None:
    """
    ```
    prefill_queue  0 - 20
    bootstrap     20 - 25
    prefill       25 - 60
    kv_hold       60 - 95
    ```
    """
    worker = Worker("prefill")
    side = PrefillSide(worker.recorder.begin("r1"))
    side.queue()
    worker.at(20)
    side.wait_for_decode()
    worker.at(25)
    side.prefill(1000, Cached(device=256, disk=64))
    worker.at(60)
    side.prefilled()
    side.hold(4096)
    worker.at(95)
    side.release("pull")
    worker.at(99)
    side.finish()
    spans = worker.spans()
    assert stages(spans) == [("prefill_queue", 0, 20), ("bootstrap", 20, 25), ("prefill", 25, 60), ("kv_hold", 60, 95)]
    shared = {"pdtrace.request.id": "r1", "pdtrace.attempt": 0}
    assert worker.span("prefill").attributes == shared | {
        "pdtrace.prompt_tokens": 1000,
        "pdtrace.cached_tokens": 320,
        "pdtrace.cached_tokens.device": 256,
        "pdtrace.cached_tokens.disk": 64,
    }
    assert worker.span("kv_hold").attributes == shared | {
        "pdtrace.hold.bytes": 4096,
        "pdtrace.hold.released_by": "pull",
    }


def test_a_hold_that_never_began_or_that_nobody_released_is_not_told() -> None:
    worker = Worker("prefill")
    held, idle = PrefillSide(worker.recorder.begin("held")), PrefillSide(worker.recorder.begin("idle"))
    held.hold(at_ns=T0 + 5)
    idle.release("cancel")
    worker.at(9)
    held.finish()
    idle.finish()
    assert worker.spans() == []


@pytest.mark.parametrize("traceparent", [None, "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"])
@pytest.mark.parametrize("edge", [True, False])
def test_a_hold_may_outlast_the_request_which_waits_for_nobody(edge: bool, traceparent: str | None) -> None:
    worker = Worker("prefill")
    side = PrefillSide(worker.recorder.begin("r1", attempt=1, edge=edge, traceparent=traceparent))
    side.prefill(100)
    worker.at(20)
    side.prefilled()
    side.hold(4096)
    side.finish()
    prefill = worker.span("prefill")
    worker.at(480_000)
    side.release("timeout")
    side.release("pull")
    held = worker.span("kv_hold")
    assert stages([prefill, held]) == [("prefill", 0, 20), ("kv_hold", 20, 480_000)]
    assert held.attributes == {
        "pdtrace.request.id": "r1",
        "pdtrace.attempt": 1,
        "pdtrace.hold.bytes": 4096,
        "pdtrace.hold.released_by": "timeout",
    }
    assert (held.trace_id, held.parent_id) == (prefill.trace_id, prefill.parent_id)
    assert held.span_id != prefill.span_id
    stats = worker.recorder.stats()
    assert (stats.begun, stats.submitted, stats.exported, stats.problems) == (2, 2, 2, {})


class Opaque:
    """A value of an engine's own whose every use raises."""

    def __int__(self) -> int:
        raise RuntimeError("more than one element")

    def __str__(self) -> str:
        raise RuntimeError("no text either")


def test_values_that_make_no_sense_are_left_out_and_nothing_is_raised() -> None:
    worker = Worker("prefill")
    record = worker.recorder.begin("r1")
    side = PrefillSide(record)
    side.prefill(100, Cached(device="many", host=7))  # type: ignore[arg-type]
    side.prefilled()
    with Handoff(record).part() as state_bytes:
        state_bytes["kv"] = Opaque()  # type: ignore[assignment]
    side.finish()
    assert worker.span("handoff").attributes == {
        "pdtrace.request.id": "r1",
        "pdtrace.attempt": 0,
        "pdtrace.handoff.result": "hit",
    }
    prefill = worker.span("prefill").attributes
    assert prefill["pdtrace.cached_tokens.host"] == 7
    assert "pdtrace.cached_tokens" not in prefill


def test_an_exception_without_a_text_is_still_the_engine_s_own() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    worker = Worker("decode")
    record = worker.recorder.begin("r1")

    def pull() -> None:
        with Handoff(record).part():
            raise Mute

    with pytest.raises(Mute):
        pull()
    record.finish()
    assert worker.span("handoff").status_message == "Mute"


def test_a_preempted_prefill_is_two_passes_with_what_each_found() -> None:
    """
    ```
    prefill        0 - 10   cached 0
    prefill_queue 10 - 30
    prefill       30 - 50   cached 16, known only afterwards
    ```
    """
    worker = Worker("prefill")
    side = PrefillSide(worker.recorder.begin("r1"))
    side.prefill(100, 0, at_ns=T0)
    side.queue(T0 + 10)
    side.prefill(100, at_ns=T0 + 30)
    side.cached(16)
    side.prefilled(T0 + 50)
    side.finish(T0 + 50)
    spans = worker.spans()
    assert stages(spans) == [("prefill", 0, 10), ("prefill_queue", 10, 30), ("prefill", 30, 50)]
    assert [s.attributes["pdtrace.cached_tokens"] for s in spans if s.name == "pdtrace.prefill"] == [0, 16]


def test_decode_side_with_a_recompute() -> None:
    """
    ```
    decode_queue  0 - 30
    recompute    30 - 70
    first_token  70 - 80
    decode       80 - 200
    ```
    """
    worker = Worker("decode")
    side = DecodeSide(worker.recorder.begin("r1", attempt=1))
    side.queue()
    worker.at(30)
    side.recompute(1000, Cached(host=0))
    worker.at(70)
    side.first_step()
    worker.at(80)
    side.first_token()
    worker.at(200)
    side.finish()
    spans = worker.spans()
    assert stages(spans) == [
        ("decode_queue", 0, 30),
        ("recompute", 30, 70),
        ("first_token", 70, 80),
        ("decode", 80, 200),
    ]
    assert {span.attributes["pdtrace.attempt"] for span in spans} == {1}
    assert worker.span("recompute").attributes["pdtrace.cached_tokens.host"] == 0


def test_a_prompt_that_d_computes_itself_is_a_prefill() -> None:
    worker = Worker("decode")
    side = DecodeSide(worker.recorder.begin("r1"))
    side.prefill(10, at_ns=T0 + 1)
    side.first_step(T0 + 5)
    side.finish(T0 + 8)
    assert stages(worker.spans()) == [("prefill", 1, 5), ("first_token", 5, 8)]


def test_a_handoff_by_rank_from_threads() -> None:
    worker = Worker("decode")
    record = worker.recorder.begin("r1")
    handoff = Handoff(
        record, src="p0", dst="d0", backend="nixl", path="rdma", mode="overlapped", ranks=4, lease_ms=30_000.0
    )

    def move(rank: int) -> None:
        handoff.moved(T0 + rank, T0 + 10 + rank, {"kv": 1000 + rank, "mamba_state": 5}, rank=rank)

    threads = [threading.Thread(target=move, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.finish(at_ns=T0 + 20)
    spans = worker.spans()
    assert stages(spans) == [("handoff", rank, 10 + rank) for rank in range(4)]
    by_rank = {span.attributes["pdtrace.handoff.rank"]: span.attributes for span in spans}
    assert by_rank[3] == {
        "pdtrace.request.id": "r1",
        "pdtrace.attempt": 0,
        "pdtrace.handoff.src": "p0",
        "pdtrace.handoff.dst": "d0",
        "pdtrace.handoff.backend": "nixl",
        "pdtrace.handoff.path": "rdma",
        "pdtrace.handoff.mode": "overlapped",
        "pdtrace.handoff.ranks": 4,
        "pdtrace.handoff.lease_ms": 30_000.0,
        "pdtrace.handoff.rank": 3,
        "pdtrace.handoff.result": "hit",
        "pdtrace.handoff.states": ["kv", "mamba_state"],
        "pdtrace.handoff.state_bytes": [1003, 5],
        "pdtrace.handoff.bytes": 1008,
    }


def test_a_handoff_that_breaks_passes_its_exception_on() -> None:
    worker = Worker("decode")
    record = worker.recorder.begin("r1")
    handoff = Handoff(record, src="p0", dst="d0")

    def pull() -> None:
        with handoff.part(rank=0) as state_bytes:
            state_bytes["kv"] = 7
            worker.at(4)
            raise ConnectionError("peer reset")

    with pytest.raises(ConnectionError):
        pull()
    with handoff.part(rank=0, attempt=1) as state_bytes:
        state_bytes["kv"] = 70
        worker.at(9)
    record.finish()
    broken, whole = sorted(worker.spans(), key=lambda span: span.start_ns)
    assert stages([broken, whole]) == [("handoff", 0, 4), ("handoff", 4, 9)]
    assert (broken.status, broken.status_message) == (2, "ConnectionError: peer reset")
    assert broken.attributes["pdtrace.handoff.result"] == "transport_error"
    assert broken.attributes["pdtrace.handoff.bytes"] == 7
    assert (whole.status, whole.attributes["pdtrace.handoff.result"]) == (0, "hit")
    assert whole.attributes["pdtrace.attempt"] == 1


def test_sides_of_a_request_that_is_not_recorded_do_nothing() -> None:
    prefill, decode = PrefillSide(NO_RECORD), DecodeSide(NO_RECORD)
    prefill.queue()
    prefill.prefill(5, Cached(1))
    prefill.hold(3)
    prefill.release("pull")
    decode.first_step()
    with Handoff(NO_RECORD).part() as state_bytes:
        state_bytes["kv"] = 1
    assert NO_RECORD.events == []
    assert NO_RECORD.attributes is None
