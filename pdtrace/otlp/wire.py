"""The view of OTLP's protobuf schema that pdtrace decodes with: the same wire format, fewer fields.

Owns the derived descriptors (for protobuf/upb and ptars alike). Does not decode.

Three things differ from the official schema, all invisible on the wire. Fields that pdtrace does not read are left
out, so they are skipped as unknown. Arrays and maps inside an AnyValue are bytes, so no parser recurses: nesting is
opened one level at a time, with a bound (leaves.py). In the strict view every attribute is the bytes of its KeyValue:
telemetry repeats itself, and equal bytes need to be read once (leaves.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

_OFFICIAL: Final = "opentelemetry.proto"
_SOURCES: Final = (
    common_pb2,
    resource_pb2,
    trace_pb2,
    logs_pb2,
    metrics_pb2,
    trace_service_pb2,
    logs_service_pb2,
    metrics_service_pb2,
)
_NOT_READ: Final = frozenset({
    "dropped_attributes_count", "dropped_events_count", "dropped_links_count", "schema_url", "trace_state",
    "entity_refs", "exemplars", "metadata", "description", "version", "key_strindex", "string_value_strindex",
    "Span.flags", "Link.flags", "Link.attributes", "LogRecord.flags", "InstrumentationScope.attributes",
})  # fmt: skip
_NESTED: Final = frozenset({"array_value", "kvlist_value"})

#: Signal -> request message, and the names of the three levels below it.
REQUESTS: Final = {
    "traces": "collector.trace.v1.ExportTraceServiceRequest",
    "logs": "collector.logs.v1.ExportLogsServiceRequest",
    "metrics": "collector.metrics.v1.ExportMetricsServiceRequest",
}
LEVELS: Final = {
    "traces": ("resource_spans", "scope_spans", "spans"),
    "logs": ("resource_logs", "scope_logs", "log_records"),
    "metrics": ("resource_metrics", "scope_metrics", "metrics"),
}


@dataclass(frozen=True, slots=True)
class WireView:
    """Message classes of one view; in the lenient one strings are bytes, so that invalid UTF-8 can be found."""

    package: str
    pool: descriptor_pool.DescriptorPool
    text_fields: frozenset[str]  #: full names of the fields that are strings in the official schema

    def descriptor(self, name: str) -> Descriptor:
        """Descriptor of e.g. "common.v1.AnyValue"."""
        return self.pool.FindMessageTypeByName(f"{self.package}.{name}")

    def message(self, name: str) -> type[Message]:
        """Message class of e.g. "common.v1.AnyValue"."""
        message: type[Message] = message_factory.GetMessageClass(self.descriptor(name))
        return message


def _trim(message: descriptor_pb2.DescriptorProto, full_name: str, package: str, lenient: bool, text: set[str]) -> None:
    kept = [f for f in message.field if not {f.name, f"{message.name}.{f.name}"} & _NOT_READ]
    del message.field[:]
    for field in kept:
        copy = message.field.add()
        copy.CopyFrom(field)
        if field.name in _NESTED or (field.name == "attributes" and not lenient):
            copy.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            copy.ClearField("type_name")
        elif field.type == FieldDescriptor.TYPE_STRING:
            text.add(f"{full_name}.{field.name}")
            if lenient:
                copy.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        if copy.HasField("type_name"):
            copy.type_name = copy.type_name.replace(f".{_OFFICIAL}.", f".{package}.")
    del message.reserved_name[:]
    for nested in message.nested_type:
        _trim(nested, f"{full_name}.{nested.name}", package, lenient, text)


def _build(package: str, *, lenient: bool) -> WireView:
    pool = descriptor_pool.DescriptorPool()
    text: set[str] = set()
    for source in _SOURCES:
        file = descriptor_pb2.FileDescriptorProto()
        source.DESCRIPTOR.CopyToProto(file)
        file.name = f"{package}/{file.name}"
        file.package = file.package.replace(_OFFICIAL, package)
        del file.service[:]
        file.ClearField("options")
        for i, dependency in enumerate(file.dependency):
            file.dependency[i] = f"{package}/{dependency}"
        for message in file.message_type:
            _trim(message, f"{file.package}.{message.name}", package, lenient, text)
        pool.Add(file)
    return WireView(package, pool, frozenset(text))


STRICT: Final = _build("pdtrace.wire", lenient=False)
LENIENT: Final = _build("pdtrace.lenient", lenient=True)

KEY_VALUE: Final[Any] = STRICT.message("common.v1.KeyValue")
ANY_ARRAY: Final[Any] = STRICT.message("common.v1.ArrayValue")
ANY_MAP: Final[Any] = STRICT.message("common.v1.KeyValueList")
STRICT_REQUEST: Final[dict[str, Any]] = {signal: STRICT.message(name) for signal, name in REQUESTS.items()}
LENIENT_REQUEST: Final[dict[str, Any]] = {signal: LENIENT.message(name) for signal, name in REQUESTS.items()}
