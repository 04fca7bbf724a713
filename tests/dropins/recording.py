"""What a recorder has exported, read back with protobuf's own parser."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.instrumentation import Recorder, Resource


@dataclass
class Span:
    """One exported span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]


class Memory:
    """An exporter that keeps everything."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    def export(self, signal: str, body: bytes) -> None:
        if signal == "traces":
            with self._lock:
                self.bodies.append(body)

    def close(self) -> None:
        pass

    def spans(self) -> list[Span]:
        found: list[Span] = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    found += [_span(span) for span in scope.spans]
        return found


class Recording:
    """A recorder and what it has exported."""

    def __init__(self, **options: Any) -> None:
        self.memory = Memory()
        resource = Resource(service_name="router", host_name="node-0")
        self.recorder = Recorder(resource, self.memory, **options)

    def spans(self, name: str = "") -> list[Span]:
        """All spans so far, or those of one name."""
        assert self.recorder.flush(5)
        return [span for span in self.memory.spans() if not name or span.name == name]

    def request(self) -> Span:
        """The one request span there is; its client may have its answer a moment before the server is through."""
        deadline = time.monotonic() + 5
        while not (spans := self.spans("pdtrace.request")) and time.monotonic() < deadline:
            time.sleep(0.01)
        (span,) = spans
        return span


def _span(span: Any) -> Span:
    attributes = {pair.key: _value(pair.value) for pair in span.attributes}
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        attributes,
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
