"""One OTLP request body to one Batch, for the receivers, the importers and the replay of the write-ahead log.

Owns the choice of decoder and the order of fallbacks. Transport, compression and storage are elsewhere.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec
from google.protobuf.message import DecodeError

from pdtrace import garbage
from pdtrace.model import Batch
from pdtrace.otlp.columns_spans import column_spans
from pdtrace.otlp.faults import Faults, Limits, Undecodable, latest_start, shown
from pdtrace.otlp.json_leaves import DECODERS, JsonLeaves
from pdtrace.otlp.leaves import Leaves, ProtobufLeaves
from pdtrace.otlp.salvage import without_bad_text
from pdtrace.otlp.walk_logs import walk_logs
from pdtrace.otlp.walk_metrics import walk_metrics
from pdtrace.otlp.walk_spans import walk_spans
from pdtrace.otlp.wire import STRICT_REQUEST

Signal = Literal["traces", "logs", "metrics"]
Encoding = Literal["protobuf", "json"]
DEFAULT_LIMITS: Final = Limits()
#: Below about 150 spans the fixed cost of the Arrow decoder (0.5 ms) is more than it saves.
_WORTH_ARROW_BYTES: Final = 64 * 1024


def decode(
    signal: Signal,
    body: bytes,
    *,
    encoding: Encoding,
    received_ns: int,
    where: str,
    limits: Limits = DEFAULT_LIMITS,
    vectorised: bool | None = None,
) -> Batch:
    """Everything of ``body`` that can be kept, and a counted reason for everything that cannot.

    Args:
        signal: Which of the three export requests ``body`` is.
        body: The request, decompressed.
        encoding: "protobuf" or "json" (OTLP-JSON).
        received_ns: When it came, Unix ns; 0 for files (the check for future starts then has years of room).
        where: "grpc", "http" or path:line, for rejections.
        limits: How much of a value is kept.
        vectorised: Decode protobuf spans with the Arrow decoder (True) or the plain one (False), which give the same;
            None picks the faster for the size of ``body``.

    Raises:
        Undecodable: the body is not such a request at all.
    """
    faults = Faults(where)
    with garbage.paused():
        if encoding == "json":
            batch = _decode_json(signal, body, faults, received_ns, limits)
        else:
            batch = _decode_protobuf(signal, body, faults, received_ns, limits, vectorised)
    batch.rejections = faults.rejections()
    return batch


def decode_traces(body: bytes, *, encoding: Encoding, received_ns: int, where: str) -> Batch:
    """``decode`` of an ExportTraceServiceRequest."""
    return decode("traces", body, encoding=encoding, received_ns=received_ns, where=where)


def decode_logs(body: bytes, *, encoding: Encoding, received_ns: int, where: str) -> Batch:
    """``decode`` of an ExportLogsServiceRequest."""
    return decode("logs", body, encoding=encoding, received_ns=received_ns, where=where)


def decode_metrics(body: bytes, *, encoding: Encoding, received_ns: int, where: str) -> Batch:
    """``decode`` of an ExportMetricsServiceRequest."""
    return decode("metrics", body, encoding=encoding, received_ns=received_ns, where=where)


def _decode_protobuf(
    signal: Signal, body: bytes, faults: Faults, received_ns: int, limits: Limits, vectorised: bool | None
) -> Batch:
    leaves = ProtobufLeaves(faults, _text_limit(signal, limits), limits.depth)
    if signal == "traces" and (len(body) >= _WORTH_ARROW_BYTES if vectorised is None else vectorised):
        # upb has the last word on what is protobuf. ptars lets pass what no OTLP sender writes (unbalanced groups), so a
        # body in which it finds nothing at all is read again.
        latest_ns = latest_start(received_ns, limits)
        try:
            spans = column_spans(body, leaves, received_ns=received_ns, latest_ns=latest_ns)
            if spans or faults.rejections():
                return Batch(spans=spans)
        except (Undecodable, DecodeError):
            pass
        faults.clear()
    try:
        return _walk(signal, STRICT_REQUEST[signal].FromString(body), leaves, received_ns, limits)
    except DecodeError as error:
        faults.clear()
        clean = without_bad_text(signal, body, faults)
        if clean is None:
            raise Undecodable(
                f"the body is not a protobuf {STRICT_REQUEST[signal].DESCRIPTOR.name}: {shown(str(error))}; "
                "check the content type and the path it was sent to"
            ) from error
    return _walk(signal, STRICT_REQUEST[signal].FromString(clean), leaves, received_ns, limits)


def _decode_json(signal: Signal, body: bytes, faults: Faults, received_ns: int, limits: Limits) -> Batch:
    try:
        request = DECODERS[signal].decode(body)
        return _walk(
            signal, request, JsonLeaves(faults, _text_limit(signal, limits), limits.depth), received_ns, limits
        )
    except RecursionError as error:
        raise Undecodable("the JSON is nested too deep to be an OTLP request") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"the body is not OTLP-JSON ({signal}): {error}") from error


def _walk(signal: Signal, request: Any, leaves: Leaves, received_ns: int, limits: Limits) -> Batch:
    if signal == "traces":
        latest_ns = latest_start(received_ns, limits)
        return Batch(spans=walk_spans(request, leaves, received_ns=received_ns, latest_ns=latest_ns))
    if signal == "logs":
        return Batch(logs=walk_logs(request, leaves, received_ns=received_ns))
    return Batch(points=walk_metrics(request, leaves, received_ns=received_ns))


def _text_limit(signal: Signal, limits: Limits) -> int:
    return limits.log_text_bytes if signal == "logs" else limits.text_bytes
