"""What a record's calls mean: which stage runs when, what goes with it, and that nonsense raises nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from pdtrace.instrumentation import NO_RECORD, Record
from pdtrace.instrumentation import stages as s
from tests.instrumentation.reading import T0, Worker, stages


@pytest.fixture
def worker() -> Worker:
    """A recorder on a clock set by hand."""
    return Worker()


def begun(worker: Worker, **options: Any) -> Record:
    """A record of request r that began at T0."""
    worker.at(0)
    return worker.recorder.begin("r", **options)


def test_next_ends_one_stage_and_begins_another_with_one_stamp(worker: Worker) -> None:
    """
    route          10 - 20
    prefill_queue  20 - 25
    prefill        25 - 60
    """
    record = begun(worker)
    for stage, at_ns in ((s.ROUTE, 10), (s.PREFILL_QUEUE, 20), (s.PREFILL, 25)):
        worker.at(at_ns)
        record.next(stage)
    worker.at(60)
    record.finish()
    assert stages(worker.spans()) == [("route", 10, 20), ("prefill_queue", 20, 25), ("prefill", 25, 60)]


def test_begin_runs_beside_and_end_takes_the_latest_of_its_name(worker: Worker) -> None:
    """
    prefill  0 ------------ 50
    handoff     10 ---------- 70
    handoff         20 - 30
    """
    record = begun(worker)
    record.begin(s.PREFILL, T0)
    record.begin(s.HANDOFF, T0 + 10)
    record.begin(s.HANDOFF, T0 + 20)
    record.end(s.HANDOFF, T0 + 30)
    record.end(s.PREFILL, T0 + 50)
    record.end(s.HANDOFF, T0 + 70)
    record.finish(at_ns=T0 + 90)
    assert stages(worker.spans()) == [("prefill", 0, 50), ("handoff", 10, 70), ("handoff", 20, 30)]


def test_next_ends_the_latest_that_runs_and_no_other(worker: Worker) -> None:
    """
    kv_hold  0 ------------------- 40
    prefill    5 - 10
    handoff       10 - 40
    """
    record = begun(worker)
    record.begin(s.KV_HOLD, T0)
    record.begin(s.PREFILL, T0 + 5)
    record.next(s.HANDOFF, T0 + 10)
    record.finish(at_ns=T0 + 40)
    assert stages(worker.spans()) == [("kv_hold", 0, 40), ("prefill", 5, 10), ("handoff", 10, 40)]


def test_whole_intervals_with_attempt_attributes_and_failure(worker: Worker) -> None:
    record = begun(worker, attempt=2)
    record.add(s.HANDOFF, T0 + 1, T0 + 4, {"pdtrace.handoff.rank": 3})
    record.add(s.HANDOFF, T0 + 2, T0 + 9, attempt=1, failed="peer is gone")
    record.add(s.DECODE, T0 + 9, T0 + 9)
    record.finish(at_ns=T0 + 9)
    first, second, third = worker.spans()
    assert first.attributes == {"pdtrace.request.id": "r", "pdtrace.attempt": 2, "pdtrace.handoff.rank": 3}
    assert (first.status, first.kind) == (0, 1)
    assert second.attributes == {"pdtrace.request.id": "r", "pdtrace.attempt": 1}
    assert (second.status, second.status_message) == (2, "peer is gone")
    assert third.end_ns == third.start_ns == T0 + 9


def test_attributes_and_failure_go_to_the_latest_span_of_the_stage(worker: Worker) -> None:
    record = begun(worker)
    record.add(s.PREFILL, T0, T0 + 1)
    record.next(s.PREFILL, T0 + 1)
    record.set_stage(s.PREFILL, "pdtrace.prompt_tokens", 10)
    record.set_stage(s.PREFILL, "pdtrace.prompt_tokens", 11)
    record.set_stage(s.PREFILL, "pdtrace.cached_tokens", 0)
    record.next(s.HANDOFF, T0 + 2)
    record.fail(s.HANDOFF, "")
    record.finish(at_ns=T0 + 3)
    one, other, handoff = worker.spans()
    assert "pdtrace.prompt_tokens" not in one.attributes
    assert (other.attributes["pdtrace.prompt_tokens"], other.attributes["pdtrace.cached_tokens"]) == (11, 0)
    assert (handoff.status, handoff.status_message) == (2, "failed")


def test_a_dict_of_the_host_is_not_changed(worker: Worker) -> None:
    record = begun(worker)
    given = {"pdtrace.prompt_tokens": 1}
    record.add(s.PREFILL, T0, T0 + 1, given)
    record.set_stage(s.PREFILL, "pdtrace.cached_tokens", 2)
    record.finish(at_ns=T0 + 1)
    assert worker.span("prefill").attributes["pdtrace.cached_tokens"] == 2
    assert given == {"pdtrace.prompt_tokens": 1}


def test_a_block_is_a_stage_as_long_as_it_runs(worker: Worker) -> None:
    record = begun(worker)
    with record.stage(s.PREFILL):
        worker.at(30)
    record.finish()
    assert stages(worker.spans()) == [("prefill", 0, 30)]


class Mute(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (ValueError("too long"), "ValueError: too long"),
        (StopIteration("over"), "StopIteration: over"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (asyncio.CancelledError(), "CancelledError: "),
        (Mute(), "Mute"),
    ],
)
def test_an_exception_passes_through_a_block_and_marks_it(worker: Worker, problem: BaseException, text: str) -> None:
    record = begun(worker)
    with pytest.raises(type(problem)) as caught, record.stage(s.PREFILL):
        raise problem
    worker.at(7)
    record.finish()
    span = worker.span("prefill")
    assert caught.value is problem
    assert (span.status, span.status_message, span.end_ns) == (2, text, T0)


def test_the_request_span_of_an_edge(worker: Worker) -> None:
    record = begun(worker, edge=True, at_ns=T0 + 1)
    record.set("gen_ai.request.model", "tiny")
    for at_ns, count in ((20, 1), (30, 2)):
        worker.at(at_ns)
        record.tokens(count)
    record.finish("ok", at_ns=T0 + 40)
    (root,) = worker.spans()
    assert (root.name, root.kind, root.status) == ("pdtrace.request", 2, 0)
    assert (root.start_ns, root.end_ns) == (T0 + 1, T0 + 40)
    assert root.attributes == {
        "pdtrace.request.id": "r",
        "gen_ai.request.model": "tiny",
        "pdtrace.first_token_ns": T0 + 20,
        "pdtrace.token_times_ns": [19, 29],
        "pdtrace.token_counts": [1, 2],
        "pdtrace.outcome": "ok",
    }


def test_the_first_token_alone_and_only_the_first_time(worker: Worker) -> None:
    record = begun(worker, edge=True)
    record.first_token(T0 + 5)
    record.first_token(T0 + 9)
    record.finish(at_ns=T0 + 9)
    (root,) = worker.spans()
    assert root.attributes["pdtrace.first_token_ns"] == T0 + 5
    assert "pdtrace.token_times_ns" not in root.attributes


def test_token_counts_are_left_out_where_each_chunk_is_one(worker: Worker) -> None:
    record = begun(worker, edge=True)
    record.tokens(at_ns=T0 + 9)
    record.tokens(at_ns=T0 + 5)  # another thread, stamped earlier and said later
    record.finish(at_ns=T0 + 9)
    (root,) = worker.spans()
    assert root.attributes["pdtrace.token_times_ns"] == [5, 9]
    assert root.attributes["pdtrace.first_token_ns"] == T0 + 5
    assert "pdtrace.token_counts" not in root.attributes


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("", 0), ("ok", 0), ("ok_fallback", 0), ("cancelled", 0), ("failed_prefill", 2), ("timed_out", 2)],
)
def test_outcomes_that_are_errors(worker: Worker, outcome: str, status: int) -> None:
    record = begun(worker, edge=True)
    record.finish(outcome, "what happened")
    (root,) = worker.spans()
    assert root.status == status
    assert root.status_message == ("what happened" if status == 2 else "")
    assert root.attributes["pdtrace.error"] == "what happened"


def test_an_exception_in_place_of_its_text(worker: Worker) -> None:
    record = begun(worker, edge=True)
    record.next(s.PREFILL, T0)
    record.fail(s.PREFILL, ValueError("too long"))  # type: ignore[arg-type]
    record.finish("failed", KeyError("x"), at_ns=T0)  # type: ignore[arg-type]
    assert worker.span("prefill").status_message == "too long"
    assert worker.span("request").attributes["pdtrace.error"] == "'x'"


def test_only_an_edge_says_something_of_the_request(worker: Worker) -> None:
    record = begun(worker)
    record.set("gen_ai.request.model", "tiny")
    record.tokens()
    record.next(s.DECODE)
    record.finish("ok")
    (span,) = worker.spans()
    assert span.attributes == {"pdtrace.request.id": "r", "pdtrace.attempt": 0}


def test_a_second_finish_does_nothing(worker: Worker) -> None:
    record = begun(worker, edge=True)
    record.finish("ok", at_ns=T0 + 5)
    record.finish("failed", at_ns=T0 + 9)
    (root,) = worker.spans()
    assert (root.end_ns, root.attributes["pdtrace.outcome"]) == (T0 + 5, "ok")
    record.finish("failed")
    assert len(worker.spans()) == 1
    assert worker.recorder.stats().submitted == 1


def test_what_is_said_after_the_finish_is_left_out_and_counted(worker: Worker) -> None:
    record = begun(worker, edge=True)
    record.next(s.PREFILL)
    record.finish("ok")
    record.next(s.HANDOFF)
    record.begin(s.DECODE)
    record.end(s.PREFILL, T0 + 9)
    record.add(s.HANDOFF, T0, T0 + 1)
    record.set("a", 1)
    record.set_stage(s.PREFILL, "a", 1)
    record.fail(s.PREFILL, "late")
    record.tokens()
    record.first_token()
    root, prefill = worker.spans()
    assert root.attributes == {"pdtrace.request.id": "r", "pdtrace.outcome": "ok"}
    assert (prefill.end_ns, prefill.status) == (T0, 0)
    assert set(worker.recorder.stats().problems) == {"said_after_finish"}


@pytest.mark.parametrize(
    ("say", "kind"),
    [
        (lambda record: record.next("thinking"), "unknown_stage"),
        (lambda record: record.add("thinking", T0, T0 + 1), "unknown_stage"),
        (lambda record: record.end(s.PREFILL), "end_without_begin"),
        (lambda record: record.fail(s.PREFILL, "x"), "stage_never_begun"),
        (lambda record: record.set_stage(s.PREFILL, "a", 1), "stage_never_begun"),
        (lambda record: record.add(s.PREFILL, T0 + 2, T0 + 1), "ends_before_it_begins"),
        (lambda record: record.add(s.PREFILL, -5, T0 + 1), "time_out_of_range"),
        (lambda record: record.add(s.PREFILL, T0, 1 << 63), "time_out_of_range"),
        (lambda record: record.next(s.PREFILL, T0 + 99), "ends_before_it_begins"),
        (lambda record: record.next(["prefill"]), "cannot_encode"),
        (lambda record: record.add(s.PREFILL, "now", None), "cannot_encode"),
        (lambda record: record.add(s.PREFILL, T0, T0 + 1, [1, 2]), "cannot_encode"),
    ],
)
def test_nonsense_is_counted(worker: Worker, say: Any, kind: str) -> None:
    record = begun(worker)
    say(record)
    record.finish(at_ns=T0 + 9)
    good = begun(worker)
    good.add(s.DECODE, T0, T0 + 3)
    good.finish(at_ns=T0 + 3)
    assert stages(worker.spans()) == [("decode", 0, 3)]  # and costs no other record anything
    assert worker.recorder.stats().problems == {kind: 1}


def test_a_stage_of_an_unknown_name_still_ends_the_one_before(worker: Worker) -> None:
    record = begun(worker)
    record.next(s.PREFILL, T0)
    record.next("thinking", T0 + 3)
    record.next(s.HANDOFF, T0 + 8)
    record.finish(at_ns=T0 + 9)
    assert stages(worker.spans()) == [("prefill", 0, 3), ("handoff", 8, 9)]


def test_what_stands_for_an_unrecorded_request_takes_every_call() -> None:
    record = NO_RECORD
    record.next(s.PREFILL)
    record.begin(s.PREFILL)
    record.end(s.PREFILL)
    record.add(s.PREFILL, 1, 2, {}, attempt=3, failed="x")
    record.set("a", 1)
    record.set_stage(s.PREFILL, "a", 1)
    record.fail(s.PREFILL, "x")
    record.tokens()
    record.first_token()
    with pytest.raises(KeyError), record.stage(s.PREFILL):
        raise KeyError
    record.finish("ok")
    assert not record.recording
    assert (record.events, record.attributes, record.token_stamps, record.first_ns) == ([], None, None, None)
    assert (record.traceparent, record.trace_id, record.span_id) == ("", "", "")


def test_threads_that_stamp_one_record_lose_and_tear_nothing() -> None:
    worker = Worker()
    record = worker.recorder.begin("r", edge=True)
    together = threading.Barrier(4)

    def stamp(rank: int) -> None:
        together.wait()
        for number in range(500):
            record.add(s.HANDOFF, T0 + number, T0 + number + rank, {"pdtrace.handoff.rank": rank})

    threads = [threading.Thread(target=stamp, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record.finish(at_ns=T0 + 1000)
    spans = worker.spans("handoff")
    found = sorted((span.attributes["pdtrace.handoff.rank"], span.start_ns, span.end_ns) for span in spans)
    assert found == [(rank, T0 + n, T0 + n + rank) for rank in range(4) for n in range(500)]
    assert worker.recorder.stats().problems == {}


def test_tasks_that_interleave_keep_their_records_apart() -> None:
    worker = Worker()

    async def request(name: str, turn: int) -> None:
        record = worker.recorder.begin(name, edge=True)
        for step, stage in enumerate((s.PREFILL_QUEUE, s.PREFILL, s.DECODE)):
            record.next(stage, T0 + 10 * step + turn)
            await asyncio.sleep(0)
        record.finish("ok", at_ns=T0 + 30 + turn)

    async def both() -> None:
        await asyncio.gather(request("a", 0), request("b", 1))

    asyncio.run(both())
    spans = worker.spans()
    for name, turn in (("a", 0), ("b", 1)):
        own = [span for span in spans if span.attributes["pdtrace.request.id"] == name]
        assert len({span.trace_id for span in own}) == 1
        assert stages([span for span in own if span.name != "pdtrace.request"]) == [
            ("prefill_queue", turn, 10 + turn),
            ("prefill", 10 + turn, 20 + turn),
            ("decode", 20 + turn, 30 + turn),
        ]


def test_two_threads_that_ask_for_the_context_get_the_same(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdtrace.instrumentation import record as module

    real = module.new_id

    def slow(size: int, always_set: int = 1) -> bytes:
        made = real(size, always_set)
        time.sleep(0.01)  # long enough for the other thread to come in
        return made

    monkeypatch.setattr(module, "new_id", slow)
    record = begun(worker, edge=True)
    asked: list[str] = []
    legs = [threading.Thread(target=lambda: asked.append(record.traceparent)) for _ in range(4)]
    for leg in legs:
        leg.start()
    for leg in legs:
        leg.join()
    assert len(asked) == 4
    assert set(asked) == {record.traceparent}
