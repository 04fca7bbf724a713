"""Set-up of the process's recorder from arguments and the usual environment variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pdtrace.instrumentation.export import Exporter, GrpcExporter, HttpExporter
from pdtrace.instrumentation.recorder import Recorder, _Nowhere, set_default
from pdtrace.instrumentation.resource import Resource

log = logging.getLogger(__name__)

#: Resource attributes that Resource has a field for, and their field.
_FIELDS = {
    "service.name": "service_name",
    "service.instance.id": "instance_id",
    "host.name": "host_name",
    "pdtrace.worker.role": "role",
    "pdtrace.worker.pool": "pool",
    "pdtrace.worker.gpu_type": "gpu_type",
    "pdtrace.run": "run",
}


def configure(
    resource: Resource | None = None,
    *,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    sample: float | None = None,
    environment: Mapping[str, str] = os.environ,
    **options: Any,
) -> Recorder:
    """Make the process's recorder and return it; what is not given comes from the environment.

    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT (none: recording is off), ..._PROTOCOL
    (``http/protobuf`` or ``grpc``), ..._HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED,
    PDTRACE_SAMPLE. A setting that makes no sense turns recording off with one line in the log; it never raises.
    """
    recorder: Recorder
    try:
        resource = resource or _resource(environment)
        endpoint = endpoint or _otlp(environment, "ENDPOINT")
        off = not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        exporter: Exporter = _Nowhere()
        if endpoint and not off:
            protocol = protocol or _otlp(environment, "PROTOCOL") or ("grpc" if endpoint.endswith(":4317") else "http")
            if protocol not in ("grpc", "http", "http/protobuf"):
                raise ValueError(f"protocol {protocol!r} is not spoken here; grpc and http/protobuf are")
            headers = headers if headers is not None else _pairs(_otlp(environment, "HEADERS"))
            exporter = (GrpcExporter if protocol == "grpc" else HttpExporter)(endpoint, headers)
        share = float(environment.get("PDTRACE_SAMPLE", "1")) if sample is None else sample
        if off:
            options["background"] = False
        recorder = Recorder(resource, exporter, sample=share, **options)
        recorder.enabled = not off
    except (ValueError, TypeError, ImportError) as problem:
        log.warning("pdtrace: recording is off: %s", problem)
        recorder = Recorder(Resource(), _Nowhere(), background=False)
        recorder.enabled = False
    set_default(recorder)
    return recorder


def _otlp(environment: Mapping[str, str], name: str) -> str:
    return environment.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or environment.get(f"OTEL_EXPORTER_OTLP_{name}") or ""


def _pairs(text: str) -> dict[str, str]:
    """``a=b,c=d`` with percent-encoding, as OpenTelemetry writes headers and resource attributes."""
    pairs = (part.split("=", 1) for part in text.split(",") if "=" in part)
    return {unquote(name.strip()): unquote(value.strip()) for name, value in pairs}


def _resource(environment: Mapping[str, str]) -> Resource:
    given = _pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    if environment.get("OTEL_SERVICE_NAME"):
        given["service.name"] = environment["OTEL_SERVICE_NAME"]
    known: dict[str, Any] = {_FIELDS[name]: given.pop(name) for name in list(given) if name in _FIELDS}
    for name in ("gpus", "tp", "pp"):
        if f"pdtrace.worker.{name}" in given:
            known[name] = int(given.pop(f"pdtrace.worker.{name}"))
    return Resource(**known, extra=given)
