"""Builders and fixtures for the tests of pdtrace/otlp."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.model import Batch
from pdtrace.otlp.counters import Counters
from pdtrace.otlp.grpc_receiver import GrpcReceiver
from pdtrace.otlp.http_receiver import HttpReceiver
from pdtrace.otlp.intake import Intake, Overloaded

START_NS = 1_796_074_641_000_000_000


class RecordingSink:
    """Keeps what it is given; refuses while ``overloaded`` is set."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, str, Batch]] = []
        self.overloaded: Overloaded | Exception | None = None
        self._lock = threading.Lock()

    def accept(self, signal: str, body: bytes, encoding: str, batch: Batch) -> None:
        if self.overloaded is not None:
            raise self.overloaded
        with self._lock:
            self.accepted.append((signal, encoding, batch))

    @property
    def spans(self) -> list[Any]:
        return [span for _, _, batch in self.accepted for span in batch.spans]


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def serve_http(sink: RecordingSink, counters: Counters) -> Iterator[Callable[..., str]]:
    started: list[HttpReceiver] = []

    def start(**options: Any) -> str:
        receiver = HttpReceiver(Intake(sink, counters), port=0, **options)
        receiver.start()
        started.append(receiver)
        return f"http://{receiver.address}"

    yield start
    for receiver in started:
        receiver.stop()


@pytest.fixture
def serve_grpc(sink: RecordingSink, counters: Counters) -> Iterator[Callable[..., str]]:
    started: list[GrpcReceiver] = []

    def start(**options: Any) -> str:
        receiver = GrpcReceiver(Intake(sink, counters), port=0, **options)
        receiver.start()
        started.append(receiver)
        return receiver.address

    yield start
    for receiver in started:
        receiver.stop(grace_s=1.0)


@pytest.fixture
def one_span() -> Callable[..., bytes]:
    """A protobuf request of one good span, changed by keyword."""

    def build(**fields: Any) -> bytes:
        request = ExportTraceServiceRequest()
        span = {
            "trace_id": bytes(range(16)),
            "span_id": bytes(range(1, 9)),
            "name": "decode",
            "start_time_unix_nano": START_NS,
            "end_time_unix_nano": START_NS + 5,
        }
        request.resource_spans.add().scope_spans.add().spans.add(**(span | fields))
        return request.SerializeToString()

    return build


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real telemetry beside the checkout."""
    folder = Path(__file__).resolve().parents[3] / "shared" / "captures"
    if not folder.is_dir():
        pytest.skip(f"no captures at {folder}: they lie beside the project's own checkout only")
    return folder
