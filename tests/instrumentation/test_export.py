"""Receivers that refuse, hang, answer rubbish or go away: what is sent again, what is given up, and that all is counted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

from pdtrace.importers.file_import import read_path
from pdtrace.instrumentation import (
    Exporter,
    ExportError,
    FileExporter,
    GrpcExporter,
    HttpExporter,
    Recorder,
    Resource,
    outbox,
)
from tests.cli.command import environment
from tests.instrumentation.receivers import (
    CLOSED,
    OK,
    Refuse,
    Then,
    answer,
    grpc_receiver,
    http_receiver,
    refused_port,
)

PARTIAL = ExportTraceServiceResponse(
    partial_success=ExportTracePartialSuccess(rejected_spans=3, error_message="too old")
).SerializeToString()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try after milliseconds."""
    monkeypatch.setattr(outbox, "_FIRST_BACKOFF_S", 0.01)


def recorded(exporter: Exporter, requests: int = 1) -> Recorder:
    """A recorder without a thread that waits to send so many requests."""
    recorder = Recorder(Resource(), exporter, background=False)
    for number in range(requests):
        recorder.begin(f"r{number}", edge=True).finish("ok")
    return recorder


# ---------------------------------------------------------------------------------------------------------------- HTTP


def test_what_is_sent(tmp_path: Path) -> None:
    with http_receiver() as receiver:
        recorder = recorded(HttpExporter(f"{receiver.url}/otlp/", {"authorization": "Bearer x"}))
        recorder.worker_state("ready")
        assert recorder.flush()
        assert [path for path, _, _ in receiver.seen] == ["/otlp/v1/logs", "/otlp/v1/traces"]
        for _, headers, _ in receiver.seen:
            assert headers["content-type"] == "application/x-protobuf"
            assert headers["authorization"] == "Bearer x"
        (span,) = receiver.spans()
        assert span.attributes["pdtrace.request.id"] == "r0"
        assert receiver.connections == 1


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_an_endpoint_may_name_the_signal(path: str) -> None:
    with http_receiver() as receiver:
        assert recorded(HttpExporter(receiver.url + path)).flush()
        assert receiver.seen[0][0] == "/v1/traces"


def test_compressed_bodies() -> None:
    with http_receiver() as receiver:
        assert recorded(HttpExporter(receiver.url, compress=True)).flush()
        assert receiver.seen[0][1]["content-encoding"] == "gzip"
        assert len(receiver.spans()) == 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:4318", "ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_what_is_no_endpoint_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        HttpExporter(url)


def test_nobody_listens() -> None:
    recorder = recorded(HttpExporter(f"http://127.0.0.1:{refused_port()}"))
    assert not recorder.flush(0.05)
    stats = recorder.stats()
    assert (stats.exported, stats.export_failed, stats.waiting) == (0, 0, 1)
    assert stats.retries >= 1
    assert not recorder.shutdown(0.05)
    stats = recorder.stats()
    assert (stats.submitted, stats.exported, stats.export_failed, stats.waiting) == (1, 0, 1, 0)


def test_a_receiver_that_comes_late_gets_everything_once() -> None:
    exporter = HttpExporter(f"http://127.0.0.1:{refused_port()}")
    recorder = recorded(exporter, 3)
    assert not recorder.flush(0.03)
    with http_receiver() as receiver:
        exporter._port = receiver.port
        assert recorder.flush()
        assert sorted(span.attributes["pdtrace.request.id"] for span in receiver.spans()) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("status", [300, 301, 400, 401, 404, 408, 413, 500, 501])
def test_refused_for_good_is_dropped_and_counted(status: int) -> None:
    with http_receiver(Then(answer(status, b"no"))) as receiver:
        recorder = recorded(HttpExporter(receiver.url), 2)
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.submitted, stats.exported, stats.export_failed, stats.retries) == (2, 0, 2, 0)
        recorder.begin("next", edge=True).finish()  # and the next one is not held up
        assert recorder.flush()
        assert recorder.stats().exported == 1
        assert len(receiver.seen) == 2


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("headers", [(), ("retry-after: 0",), ("retry-after: soon",), ("retry-after: nan",)])
def test_refused_for_now_is_delivered_later_and_once(status: int, headers: tuple[str, ...]) -> None:
    refusal = Then(answer(status, b"", *headers))
    with http_receiver(refusal, refusal) as receiver:
        recorder = recorded(HttpExporter(receiver.url))
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.exported, stats.export_failed, stats.retries) == (1, 0, 2)
        assert len(receiver.seen) == 3
        assert len({body for _, _, body in receiver.seen}) == 1
        assert len(receiver.spans()) == 1


def test_a_wait_that_was_asked_for_is_kept() -> None:
    with http_receiver(Then(answer(503, b"", "retry-after: 30"))) as receiver:
        recorder = recorded(HttpExporter(receiver.url))
        assert not recorder.flush(0.1)
        assert len(receiver.seen) == 1
        assert recorder.stats().waiting == 1
        assert recorder.shutdown(1.0)  # the end of the process does not wait half a minute: one more try
        assert len(receiver.spans()) == 1


def test_the_order_is_kept_behind_what_waits() -> None:
    with http_receiver(Then(answer(503)), Then(answer(503))) as receiver:
        recorder = recorded(HttpExporter(receiver.url))
        recorder.drain()
        recorder.begin("later", edge=True).finish()
        assert recorder.flush()
        assert [span.attributes["pdtrace.request.id"] for span in receiver.spans()] == ["r0", "later"]


def test_too_long_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_GIVE_UP_AFTER_S", 0.0)
    recorder = recorded(HttpExporter(f"http://127.0.0.1:{refused_port()}"), 5)
    assert recorder.flush()  # nothing waits any more
    assert (recorder.stats().exported, recorder.stats().export_failed) == (0, 5)


def test_too_much_to_keep_is_given_up_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_MOST_WAITING_BYTES", 1000)
    exporter = HttpExporter(f"http://127.0.0.1:{refused_port()}")
    recorder = recorded(exporter, 0)
    for number in range(20):
        recorder.begin(f"r{number}", edge=True).finish()
        assert not recorder.flush(0.0)
    stats = recorder.stats()
    assert 0 < stats.waiting < 20
    assert stats.waiting + stats.export_failed == stats.submitted == 20
    with http_receiver() as receiver:
        exporter._port = receiver.port
        assert recorder.flush()
        first = 20 - stats.waiting
        assert [span.attributes["pdtrace.request.id"] for span in receiver.spans()] == [
            f"r{n}" for n in range(first, 20)
        ]


def test_a_receiver_that_hangs_is_left_after_the_time_limit() -> None:
    with http_receiver(Then(answer(503), hang_s=30)) as receiver:
        recorder = recorded(HttpExporter(receiver.url, timeout_s=0.1))
        assert recorder.flush()
        assert (recorder.stats().exported, recorder.stats().retries) == (1, 1)
        assert len(receiver.spans()) == 1


@pytest.mark.parametrize(
    "content",
    [
        answer(200, b"\xff\xff\xff not protobuf"),
        answer(200, b'{"partialSuccess":{}}', "content-type: application/json"),
        answer(200, b"\x0a\x7fcut"),
        answer(200, b"cut", length=100),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        answer(204),
        answer(200, b"\x00" * (3 << 20)),
    ],
)
def test_a_rubbish_answer_is_an_answer_and_nothing_is_sent_twice(content: bytes) -> None:
    with http_receiver(Then(content, close=True)) as receiver:
        recorder = recorded(HttpExporter(receiver.url), 2)
        assert recorder.flush()
        recorder.begin("next", edge=True).finish()
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.exported, stats.export_failed, stats.rejected_spans) == (3, 0, 0)
        found = sorted(span.attributes["pdtrace.request.id"] for span in receiver.spans())
        assert found == ["next", "r0", "r1"]


def test_an_answer_that_never_ends_after_its_status_is_no_second_delivery() -> None:
    with http_receiver(Then(answer(200, b"", length=10))) as receiver:
        recorder = recorded(HttpExporter(receiver.url, timeout_s=0.1))
        assert recorder.flush()
        assert recorder.flush()
        assert len(receiver.spans()) == recorder.stats().exported == 1


@pytest.mark.parametrize("content", [b"", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 two hundred\r\n\r\n", b"\x16\x03\x01"])
def test_what_is_no_http_is_tried_again(content: bytes) -> None:
    with http_receiver(Then(content, close=True)) as receiver:
        recorder = recorded(HttpExporter(receiver.url))
        assert recorder.flush()
        assert (recorder.stats().exported, recorder.stats().retries) == (1, 1)
        assert len(receiver.spans()) == 1


def test_partial_success_is_counted() -> None:
    with http_receiver(Then(answer(200, PARTIAL))) as receiver:
        recorder = recorded(HttpExporter(receiver.url), 4)
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.exported, stats.rejected_spans, stats.export_failed) == (4, 3, 0)
        assert len(receiver.seen) == 1  # what was rejected must not be sent again


def test_a_connection_that_the_server_closed_between_two_requests_loses_nothing() -> None:
    with http_receiver(Then(answer(200), close=True), OK, CLOSED) as receiver:
        recorder = recorded(HttpExporter(receiver.url), 0)
        for number in range(4):
            recorder.begin(f"r{number}", edge=True).finish()
            assert recorder.flush()
        assert [span.attributes["pdtrace.request.id"] for span in receiver.spans()] == ["r0", "r1", "r2", "r3"]
        assert (recorder.stats().exported, recorder.stats().export_failed) == (4, 0)


def test_after_a_refusal_the_connection_serves_on() -> None:
    with http_receiver(Then(answer(400, b"why" * 1000))) as receiver:
        recorder = recorded(HttpExporter(receiver.url))
        assert recorder.flush()
        recorder.begin("next", edge=True).finish()
        assert recorder.flush()
        assert receiver.connections == 1


# ---------------------------------------------------------------------------------------------------------------- gRPC


def test_what_is_sent_over_grpc() -> None:
    with grpc_receiver(PARTIAL, PARTIAL) as receiver:
        recorder = recorded(GrpcExporter(f"http://{receiver.target}", {"Authorization": "Bearer x"}))
        recorder.worker_state("ready")
        assert recorder.flush()
        assert [method for method, _, _ in receiver.seen] == [
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        ]
        assert receiver.seen[0][1]["authorization"] == "Bearer x"
        assert recorder.stats().rejected_spans == 6
        assert recorder.shutdown()


@pytest.mark.parametrize(
    "refusal",
    [
        Refuse(grpc.StatusCode.UNAVAILABLE),
        Refuse(grpc.StatusCode.UNAVAILABLE, 0.01),
        Refuse(grpc.StatusCode.ABORTED),
        Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, 0.01),
        Refuse(grpc.StatusCode.UNAVAILABLE, details=b"\xff\xff rubbish"),
        Refuse(grpc.StatusCode.UNAVAILABLE, details=b"\x1a\x15\x0a\x13google.rpc.RetryInf"),
        Refuse(grpc.StatusCode.UNAVAILABLE, details=b"\x1a\x18\x0a\x16x/google.rpc.RetryInfo"),
        Refuse(grpc.StatusCode.UNAVAILABLE, details=b"\x1a\x06\x08\xff\xff\xff\xff\x7f"),
        1.0,
    ],
)
def test_refused_for_now_over_grpc(refusal: Refuse | float) -> None:
    with grpc_receiver(refusal) as receiver:
        recorder = recorded(GrpcExporter(receiver.target, timeout_s=0.5 if isinstance(refusal, float) else 5.0))
        assert recorder.flush()
        assert (recorder.stats().exported, recorder.stats().retries) == (1, 1)
        assert len(receiver.spans()) == 1
        recorder.shutdown()


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED]
)
def test_refused_for_good_over_grpc(code: grpc.StatusCode) -> None:
    with grpc_receiver(Refuse(code)) as receiver:
        recorder = recorded(GrpcExporter(receiver.target))
        assert recorder.flush()
        assert (recorder.stats().exported, recorder.stats().export_failed) == (0, 1)
        assert len(receiver.seen) == 1
        recorder.shutdown()


def test_a_wait_that_was_asked_for_over_grpc() -> None:
    with grpc_receiver(Refuse(grpc.StatusCode.UNAVAILABLE, 1.5)) as receiver:
        exporter = GrpcExporter(receiver.target)
        with pytest.raises(ExportError) as caught:
            exporter.export("traces", b"")
        assert (caught.value.retry, caught.value.retry_after_s) == (True, 1.5)
        exporter.close()


def test_nobody_listens_over_grpc() -> None:
    recorder = recorded(GrpcExporter(f"127.0.0.1:{refused_port()}"))
    assert not recorder.flush(0.1)
    assert not recorder.shutdown(0.1)
    assert (recorder.stats().export_failed, recorder.stats().waiting) == (1, 0)


def test_https_over_grpc_is_secure() -> None:
    with grpc_receiver() as receiver:
        recorder = recorded(GrpcExporter(f"https://{receiver.target}", timeout_s=0.5))
        assert not recorder.flush(0.1)  # a server that speaks plain text does not understand it
        assert receiver.seen == []
        recorder.shutdown(0.1)


# --------------------------------------------------------------------------------------------------- files and others


def test_files_are_what_ingest_reads(tmp_path: Path) -> None:
    path = tmp_path / "run.traces.bin"
    recorder = recorded(FileExporter(path), 300)
    recorder.worker_state("ready")
    assert recorder.flush()
    assert recorder.shutdown()
    batches = list(read_path(path))
    assert sum(len(batch.spans) for batch in batches) == 300
    logs = list(read_path(tmp_path / "run.logs.bin"))
    assert [log.attributes["pdtrace.worker.state"] for batch in logs for log in batch.logs] == ["ready"]


def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    recorder = recorded(FileExporter(folder / "run.traces.bin"))
    assert not recorder.flush(0.03)
    folder.mkdir()
    assert recorder.flush()
    assert recorder.stats().exported == 1
    assert os.listdir(folder) == ["run.traces.bin"]  # noqa: PTH208


FULL = """
import resource, sys
from pdtrace.instrumentation import ExportError, FileExporter
exporter = FileExporter(sys.argv[1])
exporter.export("traces", b"a" * 100)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
try:
    exporter.export("traces", b"b" * 100)
except ExportError as problem:
    assert problem.retry
else:
    raise AssertionError("there was no room for it")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
exporter.export("traces", b"c" * 100)
"""


def test_a_disk_that_is_full_leaves_no_half_request(tmp_path: Path) -> None:
    path = tmp_path / "run.traces.bin"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"\x64" + b"a" * 100 + b"\x64" + b"c" * 100


class Own:
    """An exporter of the host's, with code of its own."""

    def __init__(self, then: Callable[[], int | None]) -> None:
        self.then = then

    def export(self, signal: str, body: bytes) -> int | None:
        """What the test wants."""
        return self.then()

    def close(self) -> None:
        """Fail."""
        raise RuntimeError("closed twice")


def _fail() -> int:
    raise KeyError("a fault of the exporter's own")


def test_an_exporter_that_fails_by_itself_does_not_reach_the_host() -> None:
    recorder = recorded(Own(_fail), 2)
    assert recorder.flush()
    assert (recorder.stats().exported, recorder.stats().export_failed) == (0, 2)
    assert recorder.shutdown()
