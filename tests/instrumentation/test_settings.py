"""Set-up from the environment: what OpenTelemetry's variables mean here, and what nonsense costs (one line in the log)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from pdtrace.instrumentation import (
    NO_RECORD,
    GrpcExporter,
    HttpExporter,
    Recorder,
    Resource,
    configure,
    default_recorder,
)
from pdtrace.instrumentation import (
    recorder as module,
)

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}


@pytest.fixture(autouse=True)
def fresh_default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_default", None)
    yield
    default_recorder().shutdown(0)


def made(**environment: str) -> Recorder:
    return configure(environment=environment, background=False)


def test_without_an_endpoint_recording_is_off() -> None:
    recorder = made()
    assert not recorder.enabled
    assert recorder.begin("r") is NO_RECORD
    assert default_recorder() is recorder


def test_nobody_configured_anything() -> None:
    assert not default_recorder().enabled
    assert default_recorder() is default_recorder()


def test_off_by_opentelemetrys_switch() -> None:
    assert not made(**ENDPOINT, OTEL_SDK_DISABLED="True").enabled


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({}, HttpExporter),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, HttpExporter),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, GrpcExporter),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, HttpExporter),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"}, GrpcExporter),
    ],
)
def test_protocols(environment: dict[str, str], kind: type) -> None:
    recorder = made(**(ENDPOINT | environment))
    assert recorder.enabled
    assert type(recorder._exporter) is kind


def test_resource_of_the_variables() -> None:
    attributes = "service.instance.id=p0,host.name=node-0,pdtrace.worker.role=prefill,pdtrace.worker.tp=4,zone=a%2Cb"
    recorder = made(**ENDPOINT, OTEL_SERVICE_NAME="vllm", OTEL_RESOURCE_ATTRIBUTES=f"service.name=other,{attributes}")
    assert recorder.resource.attributes() == {
        "service.name": "vllm",
        "service.instance.id": "p0",
        "host.name": "node-0",
        "pdtrace.worker.role": "prefill",
        "pdtrace.worker.tp": 4,
        "zone": "a,b",
    }


def test_arguments_win() -> None:
    recorder = configure(
        Resource("mine"), endpoint="http://127.0.0.1:2", sample=0.5, headers={}, environment=ENDPOINT, background=False
    )
    assert recorder.resource.service_name == "mine"
    assert recorder._threshold == 1 << 63


def test_headers_are_sent() -> None:
    recorder = made(**ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20x,x-tenant=t")
    exporter: Any = recorder._exporter
    assert (exporter._headers["authorization"], exporter._headers["x-tenant"]) == ("Bearer x", "t")


@pytest.mark.parametrize(
    "nonsense",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:port"},
        {"PDTRACE_SAMPLE": "most"},
        {"PDTRACE_SAMPLE": "nan"},
        {"OTEL_RESOURCE_ATTRIBUTES": "pdtrace.worker.tp=four"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "carrier pigeon"},
    ],
)
def test_nonsense_turns_recording_off_with_one_line(nonsense: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    recorder = made(**(ENDPOINT | nonsense))
    assert not recorder.enabled
    assert recorder.begin("r") is NO_RECORD
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert "recording is off" in line.getMessage()
