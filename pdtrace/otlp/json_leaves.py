"""OTLP-JSON: the shapes that msgspec decodes into and how their fields become Python values.

Owns JSON's own rules: hex ids in either case, 64-bit integers as numbers or strings, "NaN" and "Infinity", base64
bytes, enum names tolerated, unknown fields ignored. google.protobuf.json_format is not used: it reads ids as base64.
Source: opentelemetry-proto docs/specification.md, JSON Protobuf Encoding.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from pdtrace.model import Value
from pdtrace.otlp.faults import INT64_MAX, BadField, Faults, Undecodable, cut_bytes, cut_text, shown
from pdtrace.otlp.leaves import TOO_DEEP

Number = int | float | str | None
_HEX: Final = frozenset("0123456789abcdef")
_ENUMS: Final[dict[str, dict[str, int]]] = {
    "SPAN_KIND_": dict(trace_pb2.Span.SpanKind.items()),
    "STATUS_CODE_": dict(trace_pb2.Status.StatusCode.items()),
    "SEVERITY_NUMBER_": dict(logs_pb2.SeverityNumber.items()),
    "AGGREGATION_TEMPORALITY_": dict(metrics_pb2.AggregationTemporality.items()),
}


class _Shape(msgspec.Struct, rename="camel", gc=False):
    """Base of all shapes: lowerCamelCase names, unknown fields ignored, null is absent."""


class ArrayValue(_Shape):
    values: list[AnyValue | None] | None = None


class KeyValueList(_Shape):
    values: list[KeyValue] | None = None


class AnyValue(_Shape):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Number = None
    double_value: Number = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: str | None = None


class KeyValue(_Shape):
    key: str | None = None
    value: AnyValue | None = None


class Attributed(_Shape):
    """A resource."""

    attributes: list[KeyValue] | None = None


class Scope(_Shape):
    name: str | None = None


class Status(_Shape):
    code: Number = None
    message: str | None = None


class Event(_Shape):
    time_unix_nano: Number = None
    name: str | None = None
    attributes: list[KeyValue] | None = None


class Link(_Shape):
    trace_id: Any = None
    span_id: Any = None


class JsonSpan(_Shape):
    trace_id: Any = None
    span_id: Any = None
    parent_span_id: Any = None
    name: str | None = None
    kind: Number = None
    start_time_unix_nano: Any = None
    end_time_unix_nano: Any = None
    attributes: list[KeyValue] | None = None
    events: list[Event] | None = None
    links: list[Link] | None = None
    status: Status | None = None


class ScopeSpans(_Shape):
    scope: Scope | None = None
    spans: list[JsonSpan] | None = None


class ResourceSpans(_Shape):
    resource: Attributed | None = None
    scope_spans: list[ScopeSpans] | None = None


class TracesRequest(_Shape):
    resource_spans: list[ResourceSpans] | None = None


class LogRecord(_Shape):
    time_unix_nano: Any = None
    observed_time_unix_nano: Any = None
    severity_number: Number = None
    severity_text: str | None = None
    event_name: str | None = None
    body: AnyValue | None = None
    attributes: list[KeyValue] | None = None
    trace_id: Any = None
    span_id: Any = None


class ScopeLogs(_Shape):
    scope: Scope | None = None
    log_records: list[LogRecord] | None = None


class ResourceLogs(_Shape):
    resource: Attributed | None = None
    scope_logs: list[ScopeLogs] | None = None


class LogsRequest(_Shape):
    resource_logs: list[ResourceLogs] | None = None


class Quantile(_Shape):
    quantile: Number = None
    value: Number = None


class Buckets(_Shape):
    offset: Number = None
    bucket_counts: list[Number] | None = None


class DataPoint(_Shape):
    """The union of all kinds of data points."""

    attributes: list[KeyValue] | None = None
    start_time_unix_nano: Any = None
    time_unix_nano: Any = None
    flags: Number = None
    as_double: Number = None
    as_int: Number = None
    count: Number = None
    sum: Number = None
    min: Number = None
    max: Number = None
    bucket_counts: list[Number] | None = None
    explicit_bounds: list[Number] | None = None
    scale: Number = None
    zero_count: Number = None
    zero_threshold: Number = None
    positive: Buckets | None = None
    negative: Buckets | None = None
    quantile_values: list[Quantile] | None = None


class MetricData(_Shape):
    """The union of gauge, sum, histogram, exponential histogram and summary."""

    data_points: list[DataPoint] | None = None
    aggregation_temporality: Number = None
    is_monotonic: bool | None = None


class Metric(_Shape):
    name: str | None = None
    unit: str | None = None
    gauge: MetricData | None = None
    sum: MetricData | None = None
    histogram: MetricData | None = None
    exponential_histogram: MetricData | None = None
    summary: MetricData | None = None


class ScopeMetrics(_Shape):
    scope: Scope | None = None
    metrics: list[Metric] | None = None


class ResourceMetrics(_Shape):
    resource: Attributed | None = None
    scope_metrics: list[ScopeMetrics] | None = None


class MetricsRequest(_Shape):
    resource_metrics: list[ResourceMetrics] | None = None


DECODERS: Final[dict[str, msgspec.json.Decoder[Any]]] = {
    "traces": msgspec.json.Decoder(TracesRequest),
    "logs": msgspec.json.Decoder(LogsRequest),
    "metrics": msgspec.json.Decoder(MetricsRequest),
}


class JsonLeaves:
    """Leaves of the shapes above."""

    def __init__(self, faults: Faults, text_limit: int, depth: int) -> None:
        self.faults = faults
        self.text_limit = text_limit
        self._depth = depth

    def hex_id(self, raw: Any) -> str:
        """Hex in either case to lower case; base64 (what a wrong JSON mapping sends) is not hex."""
        if raw is None:
            return ""
        if not isinstance(raw, str):
            raise BadField("ids must be strings of hex digits")
        text = raw.lower()
        if not _HEX.issuperset(text):
            raise BadField("ids must be hex digits, not base64 or anything else")
        return text

    def integer(self, raw: Any) -> int:
        """A number or a decimal string."""
        if type(raw) is int:
            return raw
        if raw is None:
            return 0
        if isinstance(raw, float) and raw.is_integer():
            return int(raw)
        if isinstance(raw, str) and len(raw) <= 24:
            try:
                return int(raw)
            except ValueError:
                pass
        raise BadField("integers must be numbers or decimal strings")

    def number(self, raw: Number) -> float:
        """A number, a decimal string, or "NaN", "Infinity", "-Infinity"."""
        try:
            return float(raw or 0)
        except (ValueError, OverflowError):
            raise BadField("doubles must be numbers or decimal strings") from None

    def enum(self, raw: Number, prefix: str) -> int:
        """A number, as the specification wants, or the name, as some senders write it."""
        if isinstance(raw, str):
            named = _ENUMS[prefix].get(raw)
            if named is not None:
                return named
        value = self.integer(raw)
        if not -(2**31) <= value < 2**31:
            raise BadField("enums must be numbers of 32 bits")
        return value

    def present(self, message: Any, field: str) -> bool:
        """Null and absent are the same."""
        return getattr(message, field) is not None

    def text(self, raw: str | None, what: str) -> str:
        """Cut if too long."""
        if not raw:
            return ""
        return raw if len(raw) * 4 <= self.text_limit else cut_text(raw, self.text_limit, self.faults, what)

    def attributes(self, key_values: Iterable[KeyValue] | None, level: int = 0) -> dict[str, Value]:
        """All KeyValues; a KeyValue without a value is None."""
        return {
            self.text(kv.key, "a key"): self.value(kv.value, kv.key or "", level + 1) if kv.value else None
            for kv in key_values or ()
        }

    def value(self, any_value: AnyValue, name: str, level: int = 1) -> Value:
        """One AnyValue; the first field that is set counts, in the order of the schema."""
        if any_value.string_value is not None:
            return self.text(any_value.string_value, name)
        if any_value.int_value is not None:
            return self._int64(any_value.int_value, name)
        if any_value.double_value is not None:
            return self.number(any_value.double_value)
        if any_value.bool_value is not None:
            return any_value.bool_value
        if any_value.bytes_value is not None:
            return cut_bytes(self._bytes(any_value.bytes_value), self.text_limit, self.faults, name)
        nested = any_value.array_value if any_value.array_value is not None else any_value.kvlist_value
        if nested is None:
            return None
        if level > self._depth:
            self.faults.add("attribute", f"values nested deeper than {self._depth} levels were left out", name)
            return TOO_DEEP
        if isinstance(nested, ArrayValue):
            return [self.value(v, name, level + 1) if v else None for v in nested.values or ()]
        return self.attributes(nested.values, level)

    def _int64(self, raw: Number, name: str) -> int:
        try:
            value = self.integer(raw)
        except BadField:
            raise Undecodable(f"intValue of {shown(name)} must be an integer, got {shown(repr(raw))}") from None
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise Undecodable(f"intValue of {shown(name)} must fit in 64 bits, got {value}")
        return value

    def _bytes(self, raw: str) -> bytes:
        padded = raw.replace("-", "+").replace("_", "/") + "=" * (-len(raw) % 4)  # URL-safe base64 is allowed too
        try:
            return base64.b64decode(padded, validate=True)
        except (binascii.Error, ValueError):
            raise BadField("bytesValue must be base64") from None
