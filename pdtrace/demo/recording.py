"""Recordings: OTLP/JSON files of this folder as protobuf messages, in the order an exporter would send them.

Owns reading. Changes nothing in what was recorded (that is pdtrace.demo.retell).
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

#: What is played after one another on one track; the tracks play side by side.
TRACKS = (
    ("dynamo-sequential", "dynamo-overlapped", "dynamo-overload"),
    ("vllm-router", "vllm-nixl-contended"),
)


@dataclass(frozen=True, slots=True)
class Item:
    """One span or log record with where it came from."""

    ready_ns: int  #: recorded time at which the source could first send it: a span's end, a log's own time
    resource: Resource
    scope: InstrumentationScope
    message: Span | LogRecord


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording, items by ``ready_ns``."""

    name: str
    start_ns: int  #: earliest stamp
    end_ns: int  #: latest stamp
    items: tuple[Item, ...]


def load(name: str) -> Recording:
    """The recording of that name (see recordings/SOURCE.md).

    Raises:
        FileNotFoundError: there is no such recording.
    """
    folder = files("pdtrace.demo") / "recordings"
    items: list[Item] = []
    starts: list[int] = []
    for document in _documents((folder / f"{name}.traces.jsonl.gz").read_bytes()):
        request = json_format.ParseDict(
            _ids_as_base64(document), ExportTraceServiceRequest(), ignore_unknown_fields=True
        )
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    items.append(Item(span.end_time_unix_nano, resource_spans.resource, scope_spans.scope, span))
                    starts.append(span.start_time_unix_nano)
    logs = folder / f"{name}.logs.jsonl.gz"
    if logs.is_file():
        for document in _documents(logs.read_bytes()):
            log_request = json_format.ParseDict(
                _ids_as_base64(document), ExportLogsServiceRequest(), ignore_unknown_fields=True
            )
            for resource_logs in log_request.resource_logs:
                for scope_logs in resource_logs.scope_logs:
                    for record in scope_logs.log_records:
                        ready_ns = record.observed_time_unix_nano or record.time_unix_nano
                        items.append(Item(ready_ns, resource_logs.resource, scope_logs.scope, record))
    items.sort(key=lambda item: item.ready_ns)
    return Recording(name, min(starts), items[-1].ready_ns, tuple(items))


def _documents(compressed: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(compressed).splitlines()]


def _ids_as_base64(value: Any) -> Any:
    """OTLP/JSON writes ids in hex where protobuf's own JSON mapping expects base64."""
    if isinstance(value, dict):
        return {
            key: base64.b64encode(bytes.fromhex(inner)).decode()
            if key in ("traceId", "spanId", "parentSpanId")
            else _ids_as_base64(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_ids_as_base64(inner) for inner in value]
    return value
