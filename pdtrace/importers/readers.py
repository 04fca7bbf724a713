"""The content of one file to small Batches: JSON lines, JSON documents, and length-delimited protobuf.

Owns lines, documents and frames, and what becomes of bad ones. Kinds are kinds.py's, record identities records.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec
from google.protobuf.message import DecodeError

from pdtrace.importers.kinds import Kind, is_one_document, varint
from pdtrace.importers.records import RECORD_KINDS, NotARecord
from pdtrace.importers.source import Source
from pdtrace.model import Batch, Rejection
from pdtrace.otlp.decode import Signal, decode
from pdtrace.otlp.faults import Undecodable, shown
from pdtrace.otlp.wire import LENIENT_REQUEST

LINE_LIMIT_BYTES: Final = 64 * 1024 * 1024  #: also of a protobuf message: OTLP's own limit
DOCUMENT_LIMIT_BYTES: Final = 256 * 1024 * 1024
_SIGNALS: Final[dict[bytes, Signal]] = {b"Spans": "traces", b"Logs": "logs", b"Metrics": "metrics"}
_OTLP_KEY: Final = re.compile(rb'"resource(Spans|Logs|Metrics)"\s*:')


def read(source: Source, kind: Kind) -> Iterator[Batch]:
    """Batches of one file, one a line, document or message; what cannot be read is a rejection in its batch."""
    if kind in ("otlp.varint", "otlp.u32"):
        yield from _frames(source, kind)
    elif is_one_document(source.head) or kind in ("client.vllm_bench", "client.guidellm"):
        yield from _document(source, kind)
    else:
        yield from _lines(source, kind)
    if source.fault:
        yield _rejected("file", source.name, source.fault)


def _rejected(what: str, where: str, reason: str) -> Batch:
    return Batch(rejections=[Rejection(what, where, reason)])


def _lines(source: Source, kind: Kind) -> Iterator[Batch]:
    number = 0
    while line := source.stream.readline(LINE_LIMIT_BYTES):
        number += 1
        where = f"{source.name}:{number}"
        if len(line) == LINE_LIMIT_BYTES and not line.endswith(b"\n"):
            while (rest := source.stream.readline(LINE_LIMIT_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield _rejected("line", where, f"the line is longer than {LINE_LIMIT_BYTES} bytes")
            continue
        text = line.removeprefix(b"\xef\xbb\xbf").strip()
        if text:
            yield _value(text, kind, where)


def _document(source: Source, kind: Kind) -> Iterator[Batch]:
    data = source.stream.read(DOCUMENT_LIMIT_BYTES + 1)
    if len(data) > DOCUMENT_LIMIT_BYTES:
        yield _rejected("file", source.name, f"the JSON document is larger than {DOCUMENT_LIMIT_BYTES} bytes")
        return
    text = data.removeprefix(b"\xef\xbb\xbf").strip()
    if text[:1] != b"[":
        yield _value(text, kind, f"{source.name}:1")
        return
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        yield _rejected("file", source.name, f"not valid JSON: {error}")
        return
    for number, item in enumerate(items, 1):
        yield _value(bytes(item), kind, f"{source.name}:{number}")


def _value(text: bytes, kind: Kind, where: str) -> Batch:
    """One JSON value of a file of ``kind``."""
    if kind == "otlp.json":
        return _otlp_json(text, where)
    try:
        value: Any = msgspec.json.decode(text)
        if not isinstance(value, dict):
            raise NotARecord(f"a record of kind {kind} is a JSON object")
        return Batch(records=[RECORD_KINDS[kind](value)])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _rejected("line", where, f"not valid JSON: {shown(str(error))}")
    except NotARecord as error:
        return _rejected("record", where, str(error))


def _otlp_json(text: bytes, where: str) -> Batch:
    key = _OTLP_KEY.search(text)
    if key is None:
        if text == b"{}":  # an empty request
            return Batch()
        return _rejected(
            "line", where, "not an OTLP request: it must have resourceSpans, resourceLogs or resourceMetrics"
        )
    try:
        return decode(_SIGNALS[key[1]], text, encoding="json", received_ns=0, where=where)
    except Undecodable as error:
        return _rejected("line", where, str(error))


def _frames(source: Source, kind: Kind) -> Iterator[Batch]:
    stream = source.stream
    signal: Signal | None = None
    number = 0
    while True:
        number += 1
        where = f"{source.name}:{number}"
        if kind == "otlp.u32":
            prefix = stream.read(4)
            size = int.from_bytes(prefix, "big") if len(prefix) == 4 else -1
        else:
            prefix = b""
            while len(prefix) < 10 and (byte := stream.read(1)):
                prefix += byte
                if byte[0] < 128:
                    break
            size = varint(prefix, 0)[0]
        if not prefix:
            return
        if size < 0 or size > LINE_LIMIT_BYTES:
            yield _rejected(
                "request", where, "the length of this message cannot be right: the rest of the file was left out"
            )
            return
        body = stream.read(size)
        if len(body) < size:
            if not source.fault:  # else the truncated gzip is the one reason
                yield _rejected("request", where, f"the file ends inside this message ({len(body)} of {size} bytes)")
            return
        signal = signal or _signal_of(body)
        try:
            yield decode(signal or "traces", body, encoding="protobuf", received_ns=0, where=where)
        except Undecodable as error:
            yield _rejected("request", where, str(error))


def _signal_of(body: bytes) -> Signal | None:
    """Which request a protobuf body is. The three look alike on the wire, so what comes out of each decides.

    A body read as another signal's has no ids, no times and no data. None = nothing in it; the next message tells.
    """
    for signal, level in (("traces", "spans"), ("logs", "log_records"), ("metrics", "metrics")):
        request = LENIENT_REQUEST[signal]()
        try:
            request.ParseFromString(body)
        except DecodeError:
            continue
        outer = next(iter(request.ListFields()), None)
        for resource in outer[1] if outer else ():
            for scope in getattr(resource, f"scope_{'logs' if signal == 'logs' else level}"):
                for item in getattr(scope, level):
                    if _is_plausible(signal, item):
                        return cast("Signal", signal)
    return None


def _is_plausible(signal: str, item: Any) -> bool:
    if signal == "traces":
        return bool(len(item.trace_id) == 16 and item.start_time_unix_nano > 0)
    if signal == "logs":
        return bool(item.time_unix_nano or item.observed_time_unix_nano)
    return bool(item.name) and len(item.ListFields()) > 1
