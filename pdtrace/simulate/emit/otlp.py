"""OTLP trace requests, span by span, for the dialects that no instrumentation of ours speaks.

Owns how values become protobuf, ids, and how many spans of a process travel together. Knows no dialect and no names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

INTERNAL: Final = Span.SPAN_KIND_INTERNAL
SERVER: Final = Span.SPAN_KIND_SERVER
CLIENT: Final = Span.SPAN_KIND_CLIENT
ERROR: Final = 2
#: Spans in one request body: what the batch processors of the captured engines send at most.
MOST_SPANS: Final = 512

Value = str | bool | int | float


class Ids:
    """Trace and span ids, and every other draw an emitter makes: one stream a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - simulated telemetry: it must repeat, not hide

    def trace(self) -> bytes:
        """16 bytes."""
        return self.random.getrandbits(128).to_bytes(16, "big")

    def span(self) -> bytes:
        """8 bytes."""
        return self.random.getrandbits(64).to_bytes(8, "big")

    def jitter_ns(self, low_us: int, high_us: int) -> int:
        """Some microseconds, to the nanosecond."""
        return self.random.randrange(low_us * 1_000, high_us * 1_000)


class Process:
    """One process that exports spans under one scope.

    Args:
        resource: Its resource attributes.
        scope: Name of its instrumentation scope.
        deliver: Takes each finished ExportTraceServiceRequest.
    """

    def __init__(self, resource: Mapping[str, Value], scope: str, deliver: Callable[[bytes], None]) -> None:
        self._resource = dict(resource)
        self._scope = scope
        self._deliver = deliver
        self._start()

    def _start(self) -> None:
        self._request = ExportTraceServiceRequest()
        spans = self._request.resource_spans.add()
        for key, value in self._resource.items():
            put(spans.resource.attributes.add(), key, value)
        self._spans = spans.scope_spans.add()
        self._spans.scope.name = self._scope

    def span(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        trace: bytes,
        span: bytes,
        parent: bytes = b"",
        kind: int = INTERNAL,
        flags: int = 0,
        attributes: Mapping[str, Value] | None = None,
        events: Sequence[tuple[int, str, Mapping[str, Value]]] = (),
        links: Sequence[tuple[bytes, bytes]] = (),
        status: int = 0,
    ) -> None:
        """Add one span; stamps are Unix ns of this process's clock, events (time_ns, name, attributes)."""
        made = self._spans.spans.add(
            name=name,
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
            trace_id=trace,
            span_id=span,
            parent_span_id=parent,
            kind=kind,
            flags=flags,
        )
        if attributes:
            for key, value in attributes.items():
                put(made.attributes.add(), key, value)
        for time_ns, said, more in events:
            event = made.events.add(time_unix_nano=time_ns, name=said)
            for key, value in more.items():
                put(event.attributes.add(), key, value)
        for linked_trace, linked_span in links:
            made.links.add(trace_id=linked_trace, span_id=linked_span)
        if status:
            made.status.code = status

    @property
    def waiting(self) -> int:
        """Spans not delivered yet."""
        return len(self._spans.spans)

    def flush(self) -> None:
        """Deliver what there is."""
        if self.waiting:
            body = self._request.SerializeToString()
            self._start()
            self._deliver(body)


class Processes:
    """The processes of one simulated cluster, made when they first speak."""

    def __init__(self, deliver: Callable[[bytes], None]) -> None:
        self._deliver = deliver
        self._all: dict[str, Process] = {}

    def get(self, name: str, resource: Mapping[str, Value], scope: str) -> Process:
        """The process called ``name``; resource and scope count at the first call."""
        process = self._all.get(name)
        if process is None:
            process = self._all[name] = Process(resource, scope, self._deliver)
        elif process.waiting >= MOST_SPANS:
            process.flush()
        return process

    def flush(self) -> None:
        """Deliver what all of them have, one request each."""
        for process in self._all.values():
            process.flush()


def put(pair: KeyValue, key: str, value: Value) -> None:
    """Set one attribute with the OTLP type that the Python type says."""
    pair.key = key
    if isinstance(value, str):
        pair.value.string_value = value
    elif isinstance(value, bool):
        pair.value.bool_value = value
    elif isinstance(value, int):
        pair.value.int_value = value
    else:
        pair.value.double_value = value
