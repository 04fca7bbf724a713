"""Sending retold spans and logs over OTLP/gRPC, as a batching exporter would.

Owns the connection and the grouping into export requests. Knows nothing of recordings.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2_grpc import LogsServiceStub
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pdtrace.demo.recording import Item

_log = logging.getLogger(__name__)
_BATCH = 512  # spans a request, the default of OpenTelemetry's batching exporters
_TIMEOUT_S = 10


class Sender:
    """One gRPC connection to an OTLP receiver.

    Args:
        endpoint: ``http://host:port`` or ``host:port`` of an OTLP/gRPC receiver.
    """

    def __init__(self, endpoint: str) -> None:
        self._channel = grpc.insecure_channel(endpoint.removeprefix("http://").rstrip("/"))
        self._traces = TraceServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._logs = LogsServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self.sent = 0
        self.lost = 0

    def send(self, items: Sequence[Item]) -> None:
        """Export ``items``; what the receiver does not take is counted in ``lost`` and logged."""
        for request, count in trace_requests(items):
            self._export(self._traces.Export, request, count)
        for log_request, count in log_requests(items):
            self._export(self._logs.Export, log_request, count)

    def _export(self, call: grpc.UnaryUnaryMultiCallable, request: object, count: int) -> None:
        try:
            call(request, timeout=_TIMEOUT_S, wait_for_ready=True)
            self.sent += count
        except grpc.RpcError as error:
            self.lost += count
            _log.warning("the receiver did not take %d items: %s", count, error)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def trace_requests(items: Sequence[Item]) -> list[tuple[ExportTraceServiceRequest, int]]:
    """Export requests for the spans among ``items``: one a resource and at most 512 spans each, with their counts."""
    requests = []
    for group in _by_resource([item for item in items if isinstance(item.message, Span)]):
        request = ExportTraceServiceRequest()
        resource_spans = request.resource_spans.add(resource=group[0].resource)
        for item in group:
            scopes = resource_spans.scope_spans
            if not scopes or scopes[-1].scope != item.scope:
                scopes.add(scope=item.scope)
            assert isinstance(item.message, Span)
            scopes[-1].spans.append(item.message)
        requests.append((request, len(group)))
    return requests


def log_requests(items: Sequence[Item]) -> list[tuple[ExportLogsServiceRequest, int]]:
    """Export requests for the log records among ``items``, with their counts."""
    requests = []
    for group in _by_resource([item for item in items if isinstance(item.message, LogRecord)]):
        request = ExportLogsServiceRequest()
        scope_logs = request.resource_logs.add(resource=group[0].resource).scope_logs.add(scope=group[0].scope)
        for item in group:
            assert isinstance(item.message, LogRecord)
            scope_logs.log_records.append(item.message)
        requests.append((request, len(group)))
    return requests


def _by_resource(items: Sequence[Item]) -> list[list[Item]]:
    groups: dict[bytes, list[Item]] = {}
    for item in items:
        groups.setdefault(item.resource.SerializeToString(deterministic=True), []).append(item)
    return [group[at : at + _BATCH] for group in groups.values() for at in range(0, len(group), _BATCH)]
