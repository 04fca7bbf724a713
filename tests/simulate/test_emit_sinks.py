"""Where telemetry goes: files that ingest reads, a receiver, and what happens when nobody is there."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pdtrace.importers import FileImport
from pdtrace.model import Batch
from pdtrace.otlp.decode import decode
from pdtrace.simulate.emit import DIALECTS, FileSink, MemorySink, NotDelivered, OtlpSink, make_emitter
from pdtrace.simulate.emit.sinks import LOGS_FILE, RECORDS_FILE, TRACES_FILE, framed, record_as_log
from tests.service.running import eventually, serve
from tests.simulate.telling import CLUSTER, OVERLAPPED, SEQUENTIAL, START_NS, Row, batch_of, draw, read_back, tell

STORIES = [draw(SEQUENTIAL, request_id="r1"), draw(OVERLAPPED, request_id="r2", number=1, mode="overlapped")]


def imported(path: Path) -> Batch:
    whole = Batch()
    source = FileImport(path)
    for batch in source.batches():
        whole.spans += batch.spans
        whole.records += batch.records
        whole.logs += batch.logs
        assert batch.rejections == []
    assert source.skipped == {}
    return whole


def seen(rows: list[Row]) -> list[Row]:
    """Rows without what differs between two tellings: ids of spans and traces, and when they came."""
    volatile = {"uid", "trace_ids", "sources", "received_ns", "activities", "evidence", "warning_list", "aliases"}
    return [{key: value for key, value in row.items() if key not in volatile} for row in rows]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("target", ["folder", "one.otlp.bin"])
def test_files_are_what_ingest_reads(dialect: str, target: str, tmp_path: Path) -> None:
    emitter = make_emitter(dialect, FileSink(tmp_path / target), CLUSTER, 1)
    emitter.worker_state("p0", "ready", START_NS)
    for story in STORIES:
        emitter.emit(story)
    emitter.close()
    rows = read_back(imported(tmp_path))
    assert [row["outcome"] for row in rows] == ["ok", "ok"]
    assert seen(rows) == seen(read_back(batch_of(tell(dialect, STORIES))))
    if target == "folder":
        extra = {"native": {LOGS_FILE}, "dynamo": {RECORDS_FILE}}.get(dialect, set())
        assert {path.name for path in (tmp_path / target).iterdir()} == {TRACES_FILE, *extra}


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 3_000_000])
def test_frames_begin_with_their_length(size: int) -> None:
    whole = framed(bytes(size))
    head = whole[: len(whole) - size]
    assert sum((byte & 127) << 7 * place for place, byte in enumerate(head)) == size
    assert all(byte & 128 for byte in head[:-1])
    assert head[-1] < 128


def test_a_new_run_replaces_the_files_of_the_old_one(tmp_path: Path) -> None:
    for count in (2, 1):
        emitter = make_emitter("vllm", FileSink(tmp_path), CLUSTER, 1)
        for story in STORIES[:count]:
            emitter.emit(story)
        emitter.close()
    assert len(read_back(imported(tmp_path))) == 1


def test_a_request_trace_line_and_its_log_are_one_record() -> None:
    (line,) = tell("dynamo", STORIES[:1]).lines
    batch = decode("logs", record_as_log(line), encoding="protobuf", received_ns=0, where="test")
    rows = read_back(Batch(spans=batch_of(tell("dynamo", STORIES[:1])).spans, logs=batch.logs))
    assert seen(rows) == seen(read_back(batch_of(tell("dynamo", STORIES[:1]))))
    claims = rows[0]["ttft_other"]
    # P answered 60 ms after the arrival; D's first token came 34 ms later: an upper bound of the handoff.
    assert claims["dynamo_nvext"] == 60_000_000
    assert claims["estimate"] == 94_000_000


def test_worker_states_are_logs_of_the_workers_own_clock() -> None:
    sink = MemorySink()
    emitter = make_emitter("native", sink, CLUSTER, 1)
    emitter.worker_state("p0", "starting", START_NS)
    emitter.worker_state("p0", "ready", START_NS + 5)
    emitter.close()
    logs = batch_of(sink).logs
    assert [(log.event_name, log.attributes["pdtrace.worker.state"], log.time_ns) for log in logs] == [
        ("pdtrace.worker.state", "starting", START_NS),
        ("pdtrace.worker.state", "ready", START_NS + 5),
    ]
    assert logs[0].resource["service.instance.id"] == "p0"
    assert sink.closed


@pytest.mark.parametrize("dialect", ["native", "dynamo"])  # with logs and with records
def test_a_receiver_takes_it(dialect: str, tmp_path: Path) -> None:
    with serve(tmp_path / "live.duckdb") as service:
        emitter = make_emitter(dialect, OtlpSink(service.http), CLUSTER, 1)
        for story in STORIES:
            emitter.emit(story)
        emitter.close()
        assert eventually(lambda: len(service.requests()), lambda count: count == 2) == 2


def test_an_endpoint_that_is_not_there_is_said_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(NotDelivered, match="cannot be reached"):
        OtlpSink(url, timeout_s=5).traces(b"")
    with pytest.raises(ValueError, match="URL"):
        OtlpSink("localhost:4318")


def test_there_is_no_other_dialect() -> None:
    with pytest.raises(ValueError, match="native, dynamo, vllm, sglang"):
        make_emitter("trtllm", MemorySink(), CLUSTER, 1)
