"""What settings of the environment come to at the receiver: resource, headers, path, protocol."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.instrumentation import HttpExporter, Recorder, Resource, configure, default_recorder, recorder, set_default
from tests.instrumentation.reading import value_of
from tests.instrumentation.receivers import grpc_receiver, http_receiver

HTTP = "http://127.0.0.1:4318"


@pytest.fixture(autouse=True)
def _default_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test leaves its recorder to the next."""
    monkeypatch.setattr(recorder, "_default", None)
    yield
    default_recorder().shutdown(0.0)


def configured(environment: dict[str, str], **options: Any) -> Recorder:
    """A recorder without a thread."""
    made = configure(environment=environment, background=False, **options)
    assert default_recorder() is made
    return made


def sent_resource(body: bytes) -> dict[str, Any]:
    """Resource attributes of a body."""
    (part,) = ExportTraceServiceRequest.FromString(body).resource_spans
    return {pair.key: value_of(pair.value) for pair in part.resource.attributes}


def test_a_recorder_of_the_hosts_own() -> None:
    own = Recorder(Resource(), HttpExporter(HTTP), background=False)
    set_default(own)
    assert default_recorder() is own


def test_everything_from_the_environment() -> None:
    with http_receiver() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x%2Cy, x-tenant = a",
            "OTEL_SERVICE_NAME": "vllm",
            "OTEL_RESOURCE_ATTRIBUTES": "service.name=other,service.instance.id=p0,host.name=node-0,"
            "pdtrace.worker.role=prefill,pdtrace.worker.pool=big,pdtrace.worker.gpus=8,pdtrace.worker.tp=4,"
            "pdtrace.worker.pp=2,pdtrace.worker.gpu_type=H200,pdtrace.run=r%201,cloud.region=eu",
        }
        made = configured(environment)
        made.begin("r", edge=True).finish()
        assert made.flush()
        ((path, headers, body),) = receiver.seen
        assert path == "/v1/traces"
        assert (headers["authorization"], headers["x-tenant"]) == ("Bearer x,y", "a")
        assert sent_resource(body) == {
            "service.name": "vllm",
            "service.instance.id": "p0",
            "host.name": "node-0",
            "pdtrace.worker.role": "prefill",
            "pdtrace.worker.pool": "big",
            "pdtrace.worker.gpus": 8,
            "pdtrace.worker.tp": 4,
            "pdtrace.worker.pp": 2,
            "pdtrace.worker.gpu_type": "H200",
            "pdtrace.run": "r 1",
            "cloud.region": "eu",
        }


def test_arguments_count_before_the_environment() -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=b",
        "OTEL_SERVICE_NAME": "other",
        "PDTRACE_SAMPLE": "0",
    }
    with http_receiver() as receiver:
        made = configured(environment, resource=Resource("mine"), endpoint=receiver.url, headers={}, sample=1.0)
        made.begin("r", edge=True).finish()
        assert made.flush()
        ((_, headers, body),) = receiver.seen
        assert "a" not in headers
        assert sent_resource(body)["service.name"] == "mine"


def test_the_endpoint_of_traces_counts_before_the_general_one() -> None:
    with http_receiver() as receiver:
        made = configured(
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces",
            }
        )
        made.begin("r", edge=True).finish()
        assert made.flush()
        assert receiver.seen[0][0] == "/v1/traces"


def test_over_grpc() -> None:
    with grpc_receiver() as receiver:
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{receiver.target}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
            "OTEL_EXPORTER_OTLP_HEADERS": "X-Tenant=a",
        }
        made = configured(environment)
        made.begin("r", edge=True).finish()
        assert made.flush()
        assert receiver.seen[0][1]["x-tenant"] == "a"


def test_a_share_from_the_environment() -> None:
    made = configured({"OTEL_EXPORTER_OTLP_ENDPOINT": HTTP, "PDTRACE_SAMPLE": "0.0"})
    assert made.enabled
    assert not made.begin("r").recording
    assert made.stats().sampled_out == 1


@pytest.mark.parametrize("text", ["", ",,,", "=", "a", "a=b=c", " a = b ", "%zz=%", "ü=ß"])
def test_pairs_of_any_form(text: str) -> None:
    made = configured({"OTEL_EXPORTER_OTLP_ENDPOINT": HTTP, "OTEL_RESOURCE_ATTRIBUTES": text})
    assert made.enabled
    wanted = {"a=b=c": {"a": "b=c"}, " a = b ": {"a": "b"}, "%zz=%": {"%zz": "%"}, "ü=ß": {"ü": "ß"}, "=": {"": ""}}
    assert dict(made.resource.extra) == wanted.get(text, {})


def test_without_grpcio_recording_is_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    made = configured({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"})
    assert not made.enabled
    assert "grpc" in caplog.text
