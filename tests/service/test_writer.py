"""The writer: what it commits, in which order it forgets, and what a failing store or request does to the others."""

from __future__ import annotations

import logging

import duckdb
import pytest

from pdtrace.model import Batch, Log, Rejection, Span
from pdtrace.otlp.intake import Overloaded
from pdtrace.service import writer as writer_module
from pdtrace.service.inbox import Inbox
from pdtrace.service.writer import Writer
from pdtrace.store.contract import Added, StoreError


def span(number: int) -> Span:
    return Span("1" * 32, f"{number:016x}", "", "s", 1, 1, 2, "", {}, {})


def full_disk() -> StoreError:
    """The store's sentence for a full disk, as it raises it."""
    problem = StoreError("cannot write to x.duckdb: No space left on device")
    problem.__cause__ = duckdb.IOException("No space left on device")
    return problem


LOG = Log(1, "INFO", "", "text", "", {}, {})


class FakeLog:
    """A write-ahead log in memory."""

    def __init__(self) -> None:
        self.kept: dict[int, bytes] = {}
        self.next = 1
        self.broken = False

    def append(self, signal: str, encoding: str, received_ns: int, body: bytes) -> int:
        if self.broken:
            raise OSError(28, "No space left on device")
        self.kept[self.next] = body
        self.next += 1
        return self.next - 1

    def mark_committed(self, positions: list[int]) -> None:
        for position in positions:
            del self.kept[position]


class FakePipeline:
    """Stores spans in a list; refuses a span named ``poison``."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.logs: list[Log] = []
        self.rejections: list[Rejection] = []
        self.failures_for_ever: Exception | None = None
        self.transactions: list[int] = []
        self.next_failures: list[Exception] = []  #: raised by the next calls of add, in order
        self.derive_failure: Exception | None = None
        self.derived = 0
        self.failures = 0
        self.dirty = 0

    def add(self, batch: Batch) -> Added:
        if self.failures_for_ever:
            raise self.failures_for_ever
        if self.next_failures:
            raise self.next_failures.pop(0)
        if any(s.name == "poison" for s in batch.spans):
            raise ValueError("cannot store this")
        self.spans += batch.spans
        self.logs += batch.logs
        self.rejections += batch.rejections
        if batch.records:
            batch.records.append(batch.records[0])  # as the pipeline does with records found in logs
        if batch.spans:
            self.transactions.append(len(batch.spans))
        return Added(batch.spans, batch.records, 0, 0)

    def derive(self, now_ns: int | None, *, most_sources: int | None = None) -> int:
        if self.derive_failure:
            raise self.derive_failure
        self.derived += 1
        return 1

    def sweep(self, now_ns: int) -> int:
        return 0


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def pipeline() -> FakePipeline:
    return FakePipeline()


def make(log: FakeLog, pipeline: FakePipeline, max_bytes: int = 1_000) -> tuple[Inbox, Writer]:
    inbox = Inbox(log, max_bytes=max_bytes)
    return inbox, Writer(inbox, pipeline, log)


def send(inbox: Inbox, *numbers: int, name: str = "s", size: int = 10) -> None:
    spans = [span(number) for number in numbers]
    for one in spans:
        one.name = name
    inbox.accept("traces", b"x" * size, "protobuf", Batch(spans=spans))


def test_what_waits_becomes_one_transaction_and_the_log_forgets_it_afterwards(
    log: FakeLog, pipeline: FakePipeline
) -> None:
    inbox, writer = make(log, pipeline)
    send(inbox, 1, 2)
    send(inbox, 3)
    assert len(log.kept) == 2
    assert inbox.waiting_bytes() == 20
    assert writer.write_waiting() == 2
    assert pipeline.transactions == [3]
    assert log.kept == {}
    assert inbox.waiting_bytes() == 0
    assert writer.counts.spans == 3


def test_a_transaction_ends_at_about_ten_thousand_spans(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, writer = make(log, pipeline)
    for first in range(0, 24_000, 4_000):
        send(inbox, *range(first, first + 4_000))
    while inbox.waiting_bytes():
        writer.write_waiting()
    assert pipeline.transactions == [12_000, 12_000]


def test_a_full_inbox_refuses_with_a_time_and_takes_again_later(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, writer = make(log, pipeline, max_bytes=25)
    send(inbox, 1)
    send(inbox, 2)
    with pytest.raises(Overloaded) as refused:
        send(inbox, 3)
    assert 0.2 <= refused.value.retry_after_s <= 5
    assert len(log.kept) == 2, "a refused request must not be replayed"
    assert inbox.refused == 1
    writer.write_waiting()
    send(inbox, 3)
    writer.write_waiting()
    assert [s.span_id[-1] for s in pipeline.spans] == ["1", "2", "3"]


def test_a_request_larger_than_the_bound_is_taken_when_nothing_waits(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, _ = make(log, pipeline, max_bytes=25)
    send(inbox, 1, size=100)
    with pytest.raises(Overloaded):
        send(inbox, 2)


def test_a_log_that_cannot_be_written_refuses_and_frees_the_place(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, writer = make(log, pipeline)
    log.broken = True
    with pytest.raises(Overloaded, match="No space left"):
        send(inbox, 1)
    assert inbox.waiting_bytes() == 0
    assert writer.write_waiting() == 0


def test_one_bad_span_is_given_up_counted_and_the_others_are_kept(
    log: FakeLog, pipeline: FakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, writer = make(log, pipeline)
    send(inbox, 1, 2)
    send(inbox, 3, name="poison")
    send(inbox, 4, 5, 6)
    inbox.accept("logs", b"x", "protobuf", Batch(logs=[LOG], rejections=[Rejection("log", "grpc", "bad")]))
    with caplog.at_level(logging.ERROR):
        writer.write_waiting()
    assert sorted(s.span_id[-1] for s in pipeline.spans) == ["1", "2", "4", "5", "6"]
    assert pipeline.logs == [LOG]
    assert writer.counts.lost == 1
    assert sorted((r.what, r.where, r.count) for r in pipeline.rejections) == [("log", "grpc", 1), ("span", "store", 1)]
    assert "cannot store this" in caplog.text
    assert log.kept == {}


def test_a_batch_that_can_never_be_stored_ends(log: FakeLog, pipeline: FakePipeline) -> None:
    """Every transaction fails, also that of the rejections: everything is given up, nothing loops."""
    inbox, writer = make(log, pipeline)
    inbox.accept(
        "traces", b"x", "protobuf", Batch(spans=[span(1), span(2)], logs=[LOG], rejections=[Rejection("log", "g", "b")])
    )
    pipeline.failures_for_ever = ValueError("no")
    writer.write_waiting()
    assert writer.counts.lost == 4
    assert log.kept == {}


def test_a_full_disk_is_waited_for(log: FakeLog, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_EVERY_S", 0.001)
    inbox, writer = make(log, pipeline)
    send(inbox, 1)
    pipeline.next_failures = [OSError(28, "No space left on device"), full_disk(), full_disk()]
    writer.write_waiting()
    assert pipeline.transactions == [1]
    assert writer.counts.store_failures == 3
    assert log.kept == {}


def test_stopping_on_a_full_disk_keeps_the_log_for_the_next_start(
    log: FakeLog, pipeline: FakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "RETRY_EVERY_S", 0.001)
    inbox, writer = make(log, pipeline)
    send(inbox, 1)
    pipeline.next_failures = [OSError(28, "No space left on device")] * 10_000_000
    writer.start()
    assert writer.drain(30)
    assert len(log.kept) == 1
    assert pipeline.spans == []


def test_a_failing_derivation_is_counted_told_once_and_ingest_goes_on(
    log: FakeLog, pipeline: FakePipeline, caplog: pytest.LogCaptureFixture
) -> None:
    inbox, writer = make(log, pipeline)
    pipeline.derive_failure = KeyError("stage")
    with caplog.at_level(logging.ERROR):
        writer.derive()
        writer.derive()
    assert writer.counts.derive_failures == 2
    assert len(caplog.records) == 1
    assert [(r.what, r.where) for r in pipeline.rejections] == [("request", "derive")] * 2
    send(inbox, 1)
    writer.write_waiting()
    assert pipeline.transactions == [1]


def test_a_database_that_shut_itself_down_ends_the_writer(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, writer = make(log, pipeline)
    pipeline.next_failures = [duckdb.FatalException("database has been invalidated")]
    send(inbox, 1)
    writer.start()
    assert writer.drain(30)
    assert isinstance(writer.fatal, duckdb.FatalException)
    assert len(log.kept) == 1, "the next start replays it"


def test_drain_writes_what_waits_derives_and_refuses_the_rest(log: FakeLog, pipeline: FakePipeline) -> None:
    inbox, writer = make(log, pipeline)
    for number in range(20):
        send(inbox, number)
    writer.start()
    assert writer.drain(30)
    assert len(pipeline.spans) == 20
    assert pipeline.derived >= 1
    assert log.kept == {}
    with pytest.raises(Overloaded):
        send(inbox, 99)
