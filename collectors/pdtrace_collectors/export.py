"""Measurements to OTLP metrics, sent by OpenTelemetry's own exporters.

Owns the mapping to OpenTelemetry's metric types and the resource. Reads no device.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from pdtrace_collectors.contract import Measurement

_INT64_MAX = 2**63 - 1
_SCOPE = InstrumentationScope("pdtrace_collectors")


class Export:
    """Sends rounds of measurements to one OTLP endpoint.

    Args:
        endpoint: ``http://host:4317`` (gRPC) or, with ``protocol`` http, ``http://host:4318`` (protobuf over HTTP).
        protocol: ``grpc`` or ``http``.
        host: value of ``host.name``: the clock and the machine these counters belong to.
    """

    def __init__(self, endpoint: str, protocol: str = "grpc", host: str | None = None) -> None:
        self._resource = Resource({"service.name": "pdtrace-collectors", "host.name": host or platform.node()})
        self._exporter = _exporter(endpoint, protocol)
        self._start_ns = time.time_ns()

    def send(self, measurements: Sequence[Measurement], time_ns: int) -> bool:
        """Send one round; False if the endpoint did not take it (the exporter has logged why)."""
        data = to_metrics(measurements, self._resource, self._start_ns, time_ns)
        return self._exporter.export(data) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """Close the connection."""
        self._exporter.shutdown()


def to_metrics(measurements: Sequence[Measurement], resource: Resource, start_ns: int, time_ns: int) -> MetricsData:
    """Measurements of one instant as OpenTelemetry metrics; times in Unix ns, ``start_ns`` only on sums."""
    points: dict[tuple[str, str, str], list[NumberDataPoint]] = {}
    for name, kind, unit, value, attributes in measurements:
        begin = 0 if kind == "gauge" else start_ns  # 0 is "unset" on the wire
        points.setdefault((name, kind, unit), []).append(NumberDataPoint(attributes, begin, time_ns, _number(value)))
    metrics = [Metric(name, None, unit, _data(kind, rows)) for (name, kind, unit), rows in points.items()]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, "")], "")])


def _number(value: float) -> float:
    """OTLP integers are signed: a kernel's u64 above 2**63 - 1 is sent as the nearest double, 11 bits coarser."""
    return float(value) if isinstance(value, int) and value > _INT64_MAX else value


def _data(kind: str, points: list[NumberDataPoint]) -> Gauge | Sum:
    if kind == "gauge":
        return Gauge(points)
    return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=kind == "counter")


def _exporter(endpoint: str, protocol: str) -> MetricExporter:
    if protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

        return HttpExporter(endpoint=f"{endpoint.rstrip('/')}/v1/metrics")
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

    return GrpcExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
