"""One telling of a recording: the same spans at another time, under other ids.

Owns the rewriting of stamps and ids, consistently over spans, links, events, attributes and logs. Names of workers,
models and services stay, so that a loop looks like the same cluster. Sends nothing.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
#: What is an id or a stamp inside a text: a uuid, a trace or vllm-router id, a span id (not all digits: a worker id may
#: be), a client's own id as our load generator wrote it (base-2-0101), milli- and nanoseconds of Unix time.
_TOKEN = re.compile(
    rf"(?<![0-9A-Za-z])(?:(?P<uuid>{_UUID})|(?P<hex>[0-9a-f]{{32}}|(?=[0-9]*[a-f])[0-9a-f]{{16}})"
    r"|(?P<client>[a-z]+-\d+)(?=-\d{4}(?![0-9A-Za-z]))|(?P<time>\d{13}|\d{19}))(?![0-9A-Za-z])"
)
_SLACK_NS = 600_000_000_000  # stamps taken before or after the recorded spans still belong to the recording


class Retelling:
    """Rewrites messages of one recording for one loop.

    Args:
        start_ns, end_ns: recorded time span, Unix ns; only numbers that read as a time in it are taken for stamps.
        shift_ns: added to every stamp.
        tag: names the loop; equal tags give equal ids.
    """

    def __init__(self, start_ns: int, end_ns: int, shift_ns: int, tag: str) -> None:
        self._low_ns, self._high_ns = start_ns - _SLACK_NS, end_ns + _SLACK_NS
        self._shift_ns = shift_ns
        self._tag = tag
        self._key = hashlib.blake2b(tag.encode(), digest_size=16).digest()

    def span(self, recorded: Span) -> Span:
        """A copy of ``recorded`` as it would have been emitted in this loop."""
        span = Span()
        span.CopyFrom(recorded)
        span.trace_id, span.span_id = self._bytes(span.trace_id), self._bytes(span.span_id)
        span.parent_span_id = self._bytes(span.parent_span_id)
        span.start_time_unix_nano += self._shift_ns
        if span.end_time_unix_nano:
            span.end_time_unix_nano += self._shift_ns
        self._attributes(span.attributes)
        for event in span.events:
            event.time_unix_nano += self._shift_ns
            event.name = self._text(event.name)
            self._attributes(event.attributes)
        for link in span.links:
            link.trace_id, link.span_id = self._bytes(link.trace_id), self._bytes(link.span_id)
            self._attributes(link.attributes)
        span.status.message = self._text(span.status.message)
        return span

    def log(self, recorded: LogRecord) -> LogRecord:
        """A copy of ``recorded`` as it would have been emitted in this loop."""
        record = LogRecord()
        record.CopyFrom(recorded)
        if record.time_unix_nano:
            record.time_unix_nano += self._shift_ns
        if record.observed_time_unix_nano:
            record.observed_time_unix_nano += self._shift_ns
        record.trace_id, record.span_id = self._bytes(record.trace_id), self._bytes(record.span_id)
        self._value(record.body)
        self._attributes(record.attributes)
        return record

    def _attributes(self, attributes: Iterable[KeyValue]) -> None:
        for attribute in attributes:
            self._value(attribute.value)

    def _value(self, value: AnyValue) -> None:
        kind = value.WhichOneof("value")
        if kind == "string_value":
            value.string_value = self._text(value.string_value)
        elif kind == "int_value":
            value.int_value = self._moved(value.int_value)
        elif kind == "array_value":
            for inner in value.array_value.values:
                self._value(inner)
        elif kind == "kvlist_value":
            self._attributes(value.kvlist_value.values)

    def _moved(self, number: int) -> int:
        """``number`` moved if it reads as ns or ms within the recording, else as it is."""
        if self._low_ns <= number <= self._high_ns:
            return number + self._shift_ns
        if self._low_ns <= number * 1_000_000 <= self._high_ns:
            return number + self._shift_ns // 1_000_000
        return number

    def _bytes(self, identifier: bytes) -> bytes:
        if not identifier:
            return b""
        return hashlib.blake2b(identifier, digest_size=len(identifier), key=self._key).digest()

    def _text(self, text: str) -> str:
        return _TOKEN.sub(self._token, text) if len(text) >= 8 else text

    def _token(self, match: re.Match[str]) -> str:
        token = match[0]
        if match["uuid"]:
            return str(uuid.UUID(bytes=self._bytes(uuid.UUID(token).bytes), version=4))
        if match["hex"]:
            return self._bytes(bytes.fromhex(token)).hex()
        if match["client"]:
            return f"{token}.{self._tag}"
        return str(self._moved(int(token)))
