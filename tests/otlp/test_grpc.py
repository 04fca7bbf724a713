"""OTLP/gRPC against the rules of the specification, over a real channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from grpc_status import rpc_status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pdtrace.otlp.counters import Counters
from pdtrace.otlp.intake import Overloaded

TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"


@pytest.fixture
def export(serve_grpc: Callable[..., str]) -> Iterator[Callable[..., bytes]]:
    with grpc.insecure_channel(serve_grpc(max_body_bytes=200_000)) as channel:

        def call(body: bytes, method: str = TRACES, **options: Any) -> Any:
            return channel.unary_unary(method)(body, timeout=20, **options)

        yield call


def test_full_success_is_an_empty_message_for_every_service(export: Any, one_span: Any, sink: Any) -> None:
    assert export(one_span()) == b""
    assert export(one_span(), compression=grpc.Compression.Gzip) == b""
    assert export(b"", LOGS) == b""
    assert export(b"", METRICS) == b""
    assert [(signal, encoding) for signal, encoding, _ in sink.accepted] == [("traces", "protobuf")] * 2


def test_partial_success(export: Any, one_span: Any, sink: Any) -> None:
    answer = ExportTraceServiceResponse.FromString(export(one_span() + one_span(span_id=bytes(8))))
    assert answer.partial_success.rejected_spans == 1
    assert "span_id must not be all zeros" in answer.partial_success.error_message
    assert len(sink.spans) == 1


def test_undecodable_is_invalid_argument(export: Any, counters: Counters) -> None:
    with pytest.raises(grpc.RpcError) as failure:
        export(b"\xff\xff")
    status = rpc_status.from_call(failure.value)
    assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    detail = BadRequest()
    assert status.details[0].Unpack(detail)
    assert "not a protobuf" in detail.field_violations[0].description
    assert counters.total("refused", "undecodable") == 1


def test_overload_is_unavailable_with_retry_info(export: Any, one_span: Any, sink: Any) -> None:
    sink.overloaded = Overloaded(2.25, "the log is full")
    with pytest.raises(grpc.RpcError) as failure:
        export(one_span())
    assert failure.value.code() == grpc.StatusCode.UNAVAILABLE
    retry = RetryInfo()
    assert rpc_status.from_call(failure.value).details[0].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 2250


def test_too_large_and_bombs_are_resource_exhausted(export: Any, sink: Any) -> None:
    for body, options in ((b"x" * 200_001, {}), (bytes(50_000_000), {"compression": grpc.Compression.Gzip})):
        with pytest.raises(grpc.RpcError) as failure:
            export(body, **options)
        assert failure.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert rpc_status.from_call(failure.value) is None  # no RetryInfo: not to be repeated
    assert sink.accepted == []


def test_an_unknown_method_is_unimplemented(export: Any) -> None:
    for method in (TRACES.replace("Export", "Import"), "/opentelemetry.proto.collector.profiles.v1.P/Export"):
        with pytest.raises(grpc.RpcError) as failure:
            export(b"", method)
        assert failure.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_failing_sink_does_not_stop_the_server(export: Any, one_span: Any, sink: Any) -> None:
    sink.overloaded = RuntimeError("boom")
    with pytest.raises(grpc.RpcError) as failure:
        export(one_span())
    assert failure.value.code() == grpc.StatusCode.INTERNAL
    assert "boom" not in failure.value.details()
    sink.overloaded = None
    assert export(one_span()) == b""


def test_a_token_is_needed_if_one_is_set(serve_grpc: Any, one_span: Any, sink: Any) -> None:
    with grpc.insecure_channel(serve_grpc(token="s3cret")) as channel:
        call = channel.unary_unary(TRACES)
        for metadata in ([], [("authorization", "Bearer other")]):
            with pytest.raises(grpc.RpcError) as failure:
                call(one_span(), timeout=20, metadata=metadata)
            assert failure.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert call(one_span(), timeout=20, metadata=[("authorization", "Bearer s3cret")]) == b""
    assert len(sink.spans) == 1


def test_a_taken_port_is_told_at_once(serve_grpc: Any) -> None:
    """grpc would by default share the port with the other server and split its traffic."""
    port = int(serve_grpc().rpartition(":")[2])
    from pdtrace.otlp.grpc_receiver import GrpcReceiver

    with pytest.raises(OSError, match=f"127.0.0.1:{port}.*port taken"):
        GrpcReceiver(None, port=port)  # type: ignore[arg-type]
