"""Response bodies of OTLP: success, partial success and google.rpc.Status, in protobuf and JSON.

Owns their bytes. Does not decide when to send which.
"""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec
from google.protobuf.any_pb2 import Any as PackedAny
from google.protobuf.duration_pb2 import Duration
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pdtrace.otlp.decode import Encoding, Signal
from pdtrace.otlp.intake import Partial

_RESPONSES: Final[dict[str, Any]] = {
    "traces": (ExportTraceServiceResponse, "rejected_spans", "rejectedSpans"),
    "logs": (ExportLogsServiceResponse, "rejected_log_records", "rejectedLogRecords"),
    "metrics": (ExportMetricsServiceResponse, "rejected_data_points", "rejectedDataPoints"),
}
_TEXT_BYTES: Final = 1024


def success(signal: Signal, encoding: Encoding, partial: Partial | None) -> bytes:
    """An Export...ServiceResponse; partial_success is unset if everything was kept, as the specification demands."""
    message, field, json_field = _RESPONSES[signal]
    if encoding == "json":
        if partial is None:
            return b"{}"
        body = {"errorMessage": partial.message}
        if partial.rejected:
            body[json_field] = str(partial.rejected)
        return msgspec.json.encode({"partialSuccess": body})
    response = message()
    if partial is not None:
        setattr(response.partial_success, field, partial.rejected)
        response.partial_success.error_message = partial.message
    return bytes(response.SerializeToString())


def bad_request(text: str) -> Status:
    """Status INVALID_ARGUMENT with a BadRequest detail."""
    text = _short(text)
    detail = PackedAny()
    detail.Pack(BadRequest(field_violations=[BadRequest.FieldViolation(description=text)]))
    return Status(code=Code.INVALID_ARGUMENT, message=text, details=[detail])


def unavailable(text: str, retry_after_s: float) -> Status:
    """Status UNAVAILABLE with a RetryInfo detail: senders wait that long and repeat."""
    detail = PackedAny()
    seconds = math.floor(retry_after_s)
    nanos = round((retry_after_s - seconds) * 1e9)
    detail.Pack(RetryInfo(retry_delay=Duration(seconds=seconds, nanos=nanos)))
    return Status(code=Code.UNAVAILABLE, message=_short(text), details=[detail])


def plain(code: Code.ValueType, text: str) -> Status:
    """Status without details."""
    return Status(code=code, message=_short(text))


def status_bytes(status: Status, encoding: Encoding) -> bytes:
    """``status`` as an HTTP error body."""
    if encoding == "protobuf":
        return bytes(status.SerializeToString())
    body: dict[str, Any] = {"code": status.code, "message": status.message}
    details: list[dict[str, Any]] = []
    for packed in status.details:
        violations, retry = BadRequest(), RetryInfo()
        if packed.Unpack(violations):
            shown = [{"description": v.description} for v in violations.field_violations]
            details.append({"@type": packed.type_url, "fieldViolations": shown})
        elif packed.Unpack(retry):
            seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            details.append({"@type": packed.type_url, "retryDelay": f"{seconds:g}s"})
    if details:
        body["details"] = details
    return msgspec.json.encode(body)


def _short(text: str) -> str:
    encoded = text.encode("utf-8", "replace")
    return encoded.decode() if len(encoded) <= _TEXT_BYTES else encoded[:_TEXT_BYTES].decode("utf-8", "ignore")
