"""Where encoded telemetry goes: an OTLP receiver over HTTP or gRPC, or a file.

Owns one send and what its failure means (again later, or never). Retrying, counting and dropping are the recorder's.
"""

from __future__ import annotations

import gzip
import http.client
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol
from urllib.parse import urlsplit

from pdtrace.instrumentation.wire import Undecodable, fields, varint

Signal = Literal["traces", "logs", "metrics"]
_RETRYABLE_HTTP: Final = frozenset((429, 502, 503, 504))
_RETRYABLE_GRPC: Final = frozenset(
    ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS")
)
_MOST_ANSWER_BYTES: Final = 1 << 20


class ExportError(Exception):
    """A send that failed.

    Args:
        text: What went wrong.
        retry: Whether the same bytes may be taken later.
        retry_after_s: When, if the receiver said so.
    """

    def __init__(self, text: str, *, retry: bool, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry = retry
        self.retry_after_s = retry_after_s


class Exporter(Protocol):
    """One receiver. Used by one thread at a time."""

    def export(self, signal: Signal, body: bytes) -> int | None:
        """Send one export request.

        Returns:
            How many of its spans, log records or points the receiver rejected; None is 0.

        Raises:
            ExportError: it did not arrive.
        """

    def close(self) -> None:
        """Release the connection."""


class HttpExporter:
    """OTLP/HTTP with protobuf bodies, over the standard library.

    Args:
        url: e.g. http://127.0.0.1:4318; ``/v1/traces`` and so on are added.
        headers: Sent with each request, e.g. authorization.
        timeout_s: For connecting and for each wait on the socket.

    Raises:
        ValueError: no http(s) URL.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0, *, compress: bool = False
    ) -> None:
        where = urlsplit(url)
        if where.scheme not in ("http", "https") or not where.hostname:
            raise ValueError(f"{url!r} is no OTLP/HTTP endpoint; http://127.0.0.1:4318 would be one")
        self._port = where.port  # raises here for a port that is none, not at each export
        self._where, self._timeout_s = where, timeout_s
        self._path = where.path.rstrip("/").removesuffix("/v1/traces")
        self._headers = {"content-type": "application/x-protobuf", "user-agent": "pdtrace", **(headers or {})}
        self._compress = compress
        if compress:
            self._headers["content-encoding"] = "gzip"
        self._connection: http.client.HTTPConnection | None = None
        self._pid = 0

    def export(self, signal: Signal, body: bytes) -> int | None:
        """See the protocol."""
        if self._compress:
            body = gzip.compress(body, 1)
        if self._connection is None or self._pid != os.getpid():  # a forked child must not share its parent's socket
            self._connection, self._pid = self._connect(), os.getpid()
        connection = self._connection
        try:
            connection.request("POST", f"{self._path}/v1/{signal}", body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            self.close()
            raise ExportError(f"{type(problem).__name__}: {problem}", retry=True) from problem
        status = response.status
        try:
            answer = response.read(_MOST_ANSWER_BYTES)
        except (OSError, http.client.HTTPException):  # the status has said what became of the body
            answer = b""
        if response.will_close or not response.isclosed():
            self.close()
        if 200 <= status < 300:
            return _rejected(answer)
        wait_s = _seconds(response.headers.get("retry-after"))
        raise ExportError(f"HTTP {status}", retry=status in _RETRYABLE_HTTP, retry_after_s=wait_s)

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._where.scheme == "https" else http.client.HTTPConnection
        return kind(self._where.hostname or "", self._port, timeout=self._timeout_s)

    def close(self) -> None:
        """Close the connection; the next export opens another."""
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        self._connection = None


class GrpcExporter:
    """OTLP/gRPC. Needs the package grpcio, which is not part of the base install and is imported here.

    Args:
        target: ``host:port``, or a URL of which host and port are taken.
        headers: Metadata of each call.
        secure: TLS with the system's certificates; a URL that begins with https:// says so too.

    Raises:
        ImportError: grpcio is not installed.
    """

    _METHODS: Final = {
        "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    }

    def __init__(
        self, target: str, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0, *, secure: bool = False
    ) -> None:
        import grpc

        self._grpc = grpc
        self._target = urlsplit(target).netloc if "://" in target else target
        self._metadata = [(name.lower(), value) for name, value in (headers or {}).items()]
        self._timeout_s = timeout_s
        self._secure = secure or target.startswith("https://")
        self._channel: Any = None
        self._pid = 0

    def export(self, signal: Signal, body: bytes) -> int | None:
        """See the protocol."""
        grpc = self._grpc
        if self._channel is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._channel = (
                grpc.secure_channel(self._target, grpc.ssl_channel_credentials())
                if self._secure
                else grpc.insecure_channel(self._target)
            )
        try:
            call = self._channel.unary_unary(self._METHODS[signal])
            return _rejected(call(body, timeout=self._timeout_s, metadata=self._metadata))
        except grpc.RpcError as problem:
            code = problem.code().name
            wait_s = _retry_delay_s(problem)
            retry = code in _RETRYABLE_GRPC or (code == "RESOURCE_EXHAUSTED" and wait_s is not None)
            raise ExportError(f"{code}: {problem.details()}", retry=retry, retry_after_s=wait_s) from problem

    def close(self) -> None:
        """Close the channel; the next export opens another."""
        if self._channel is not None and self._pid == os.getpid():
            self._channel.close()
        self._channel = None


class FileExporter:
    """Length-delimited export requests, as `pdtrace ingest` reads them: spans to ``path``, logs and metrics beside it.

    Args:
        path: e.g. run.traces.bin; logs go to run.logs.bin, metrics to run.metrics.bin.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        stem = path.name.removesuffix(".bin").removesuffix(".traces")
        self._paths = {
            "traces": path,
            "logs": path.with_name(f"{stem}.logs.bin"),
            "metrics": path.with_name(f"{stem}.metrics.bin"),
        }

    def export(self, signal: Signal, body: bytes) -> int | None:
        """See the protocol.

        Opened for each request and written at once, without a lock: neither a fork nor a file that was moved away does
        harm, and several recorders may share it.
        """
        framed = varint(len(body)) + body
        try:
            with self._paths[signal].open("ab", buffering=0) as file:
                written = file.write(framed)
                if written != len(framed):  # half a request would make everything after it unreadable
                    file.truncate(file.tell() - written)
                    raise OSError(f"only {written} of {len(framed)} bytes could be written")
        except OSError as problem:
            raise ExportError(str(problem), retry=True) from problem
        return None

    def close(self) -> None:
        """Nothing is held."""


def _rejected(answer: bytes) -> int:
    """``partial_success.rejected_*`` of an export response; what is no response counts as nothing rejected."""
    try:
        for number, partial in fields(answer):
            if number == 1 and isinstance(partial, bytes):
                return sum(value for inner, value in fields(partial) if inner == 1 and isinstance(value, int))
    except Undecodable:
        pass
    return 0


def _seconds(text: str | None) -> float | None:
    """Seconds of a Retry-After header; its date form is not used between machines and is left to the backoff."""
    try:
        return max(0.0, float(text)) if text is not None else None
    except ValueError:
        return None


def _retry_delay_s(problem: Any) -> float | None:
    """RetryInfo of a google.rpc.Status in the trailing metadata."""
    try:
        for name, value in problem.trailing_metadata() or ():
            if name != "grpc-status-details-bin":
                continue
            for number, detail in fields(value):
                parts: dict[int, Any] = dict(fields(detail)) if number == 3 and isinstance(detail, bytes) else {}
                kind = parts.get(1)
                if isinstance(kind, bytes) and kind.endswith(b"google.rpc.RetryInfo"):
                    info: dict[int, Any] = dict(fields(parts.get(2, b"")))
                    delay: dict[int, Any] = dict(fields(info.get(1, b"")))
                    return float(delay.get(1, 0)) + float(delay.get(2, 0)) / 1e9
    except (Undecodable, TypeError, ValueError):
        pass
    return None
