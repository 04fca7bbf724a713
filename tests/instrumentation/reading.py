"""What a recorder exported, read back with protobuf's own parser.

Owns fixtures only: an exporter that keeps bodies, a clock set by hand.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.instrumentation import Recorder, Resource

T0 = 1_796_000_000_000_000_000


@dataclass
class Span:
    """One exported span."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    status: int
    status_message: str
    attributes: dict[str, Any]


class Hand:
    """A clock that the test sets; stamps are Unix time."""

    def __init__(self) -> None:
        self.at_ns = T0

    def now_ns(self) -> int:
        """The time that was set."""
        return self.at_ns

    def wall_ns(self, now_ns: int) -> int:
        """The same."""
        return now_ns


class Memory:
    """An exporter that keeps everything."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        self.closed = 0
        self._lock = threading.Lock()

    def export(self, signal: str, body: bytes) -> None:
        """Keep it."""
        with self._lock:
            self.bodies.append((signal, body))

    def close(self) -> None:
        """Count it."""
        self.closed += 1

    def spans(self) -> list[Span]:
        """All spans, as they came."""
        return [span for signal, body in self.bodies if signal == "traces" for span in spans_of(body)]

    def metrics(self) -> list[dict[str, Any]]:
        """Points of every metrics request: one dict of attribute value -> count each."""
        return [metric_points(body) for signal, body in self.bodies if signal == "metrics"]

    def logs(self) -> list[Any]:
        """All log records."""
        return [
            record
            for signal, body in self.bodies
            if signal == "logs"
            for resource in ExportLogsServiceRequest.FromString(body).resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


class Worker:
    """A recorder without a thread, on a clock set by hand, and what it exported."""

    def __init__(self, role: str = "", **options: Any) -> None:
        self.memory = Memory()
        self.clock = Hand()
        resource = Resource(role=role, host_name="node-0")
        self.recorder = Recorder(resource, self.memory, clock=self.clock, background=False, **options)

    def at(self, after_ns: int) -> None:
        """Set the time."""
        self.clock.at_ns = T0 + after_ns

    def spans(self, stage: str = "") -> list[Span]:
        """What was exported so far, all of it or one stage."""
        assert self.recorder.flush()
        return [span for span in self.memory.spans() if not stage or span.name == f"pdtrace.{stage}"]

    def span(self, stage: str) -> Span:
        """The one span of a stage."""
        (span,) = self.spans(stage)
        return span


def spans_of(body: bytes) -> list[Span]:
    """Spans of one request, parsed by protobuf."""
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Span(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code,
            span.status.message,
            {pair.key: value_of(pair.value) for pair in span.attributes},
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def metric_points(body: bytes) -> dict[str, int]:
    """Value by the points' one attribute."""
    request = ExportMetricsServiceRequest.FromString(body)
    (resource,) = request.resource_metrics
    (scope,) = resource.scope_metrics
    (metric,) = scope.metrics
    assert metric.sum.is_monotonic
    return {point.attributes[0].value.string_value: point.as_int for point in metric.sum.data_points}


def value_of(value: Any) -> Any:
    """An AnyValue as Python's."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def stages(spans: list[Span]) -> list[tuple[str, int, int]]:
    """(stage, start, end) in order of time, ns after T0."""
    found = ((span.name.removeprefix("pdtrace."), span.start_ns - T0, span.end_ns - T0) for span in spans)
    return sorted(found, key=lambda stage: (stage[1], stage[2]))
