"""The real opentelemetry-sdk exporters against the receivers."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanKind, StatusCode

from pdtrace.otlp.intake import Overloaded


@pytest.fixture(params=["grpc", "grpc-gzip", "http", "http-gzip", "http-deflate"])
def exporter(request: pytest.FixtureRequest, serve_grpc: Any, serve_http: Any) -> Any:
    transport, _, compression = request.param.partition("-")
    if transport == "grpc":
        from grpc import Compression as GrpcCompression

        packed = GrpcCompression.Gzip if compression else GrpcCompression.NoCompression
        return GrpcSpanExporter(endpoint=serve_grpc(), insecure=True, compression=packed, timeout=20)
    return HttpSpanExporter(
        endpoint=f"{serve_http()}/v1/traces", compression=Compression(compression or "none"), timeout=20
    )


def test_spans_arrive_as_the_sdk_made_them(exporter: Any, sink: Any) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "d0", "gpus": 8}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("engine")
    with tracer.start_as_current_span("request", kind=SpanKind.SERVER) as outer:
        outer.set_attribute("blocks", [1, 2])
        outer.add_event("first token", {"n": 1})
        with tracer.start_as_current_span("prefill", links=[Link(outer.get_span_context())]) as inner:
            inner.set_status(StatusCode.ERROR, "aborted")
    provider.shutdown()
    prefill, request = sink.spans
    context = outer.get_span_context()
    assert (request.trace_id, request.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert (request.parent_id, request.kind, request.name, request.scope) == ("", 2, "request", "engine")
    assert (request.resource["service.name"], request.resource["gpus"]) == ("d0", 8)
    assert request.attributes == {"blocks": [1, 2]}
    assert (request.events[0].name, request.events[0].attributes) == ("first token", {"n": 1})
    assert (prefill.parent_id, prefill.links) == (request.span_id, [(request.trace_id, request.span_id)])
    assert (prefill.status, prefill.status_message) == (2, "aborted")
    assert (prefill.start_ns, prefill.end_ns) == (inner.start_time, inner.end_time)


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_metrics_arrive(transport: str, serve_grpc: Any, serve_http: Any, sink: Any) -> None:
    exporter: Any = (
        GrpcMetricExporter(endpoint=serve_grpc(), insecure=True)
        if transport == "grpc"
        else HttpMetricExporter(endpoint=f"{serve_http()}/v1/metrics")
    )
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    meter = provider.get_meter("engine")
    meter.create_counter("tokens").add(5, {"role": "decode"})
    meter.create_histogram("ttft", unit="s").record(0.2)
    provider.shutdown()
    points = {p.name: p for _, _, batch in sink.accepted for p in batch.points}
    assert (points["tokens"].value, points["tokens"].attributes) == (5, {"role": "decode"})
    assert points["ttft"].distribution["count"] == 1


@pytest.mark.parametrize("transport", ["grpc", "http"])
def test_the_sdk_comes_again_after_an_overload(transport: str, serve_grpc: Any, serve_http: Any, sink: Any) -> None:
    exporter: Any = (
        GrpcSpanExporter(endpoint=serve_grpc(), insecure=True, timeout=20)
        if transport == "grpc"
        else HttpSpanExporter(endpoint=f"{serve_http()}/v1/traces", timeout=20)
    )
    accept = sink.accept
    refusals = iter([Overloaded(0.1, "full")])

    def refuse_once(*request: Any) -> None:
        for refusal in refusals:
            raise refusal
        accept(*request)

    sink.accept = refuse_once
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    provider.get_tracer("engine").start_span("request").end()
    provider.shutdown()
    assert [span.name for span in sink.spans] == ["request"]
