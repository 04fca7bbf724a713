"""OTLP/HTTP as a bare ASGI application: paths, methods, content types, encodings, limits and error bodies.

Owns the HTTP rules of the OTLP specification. Serving it is http_receiver.py's; decoding and storing is Intake's.
Source: opentelemetry-proto docs/specification.md, OTLP/HTTP.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status

from pdtrace.otlp.decode import Encoding, Signal
from pdtrace.otlp.faults import Undecodable
from pdtrace.otlp.inflate import ENCODINGS, Corrupt, TooLarge, inflate
from pdtrace.otlp.intake import Intake, Overloaded
from pdtrace.otlp.replies import bad_request, plain, status_bytes, success, unavailable

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger(__name__)
PATHS: Final[dict[str, Signal]] = {"/v1/traces": "traces", "/v1/logs": "logs", "/v1/metrics": "metrics"}
_MEDIA_TYPES: Final[dict[str, Encoding]] = {
    "application/x-protobuf": "protobuf",
    "application/protobuf": "protobuf",
    "application/json": "json",
}
_CONTENT_TYPE: Final[dict[Encoding, bytes]] = {"protobuf": b"application/x-protobuf", "json": b"application/json"}
_BODY_TIMEOUT_S: Final = 30.0
#: Bodies inflated and decoded at a time: bounds memory to this many times the body limit, and shares fsyncs.
_THREADS: Final = 8


class _Refusal(Exception):
    """An HTTP error answer."""

    def __init__(self, http_status: int, status: Status, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()):
        super().__init__(status.message)
        self.http_status = http_status
        self.status = status
        self.reason = reason
        self.headers = headers


class _Disconnected(Exception):
    """The sender went away in the middle of its body."""


class OtlpHttpApp:
    """The ASGI callable."""

    def __init__(self, intake: Intake, *, token: str | None = None, max_body_bytes: int = 64 * 1024 * 1024) -> None:
        self._intake = intake
        self._authorization = f"Bearer {token}".encode() if token else None
        self._max_body_bytes = max_body_bytes
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp-http")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"OTLP is served over http, not {scope['type']}")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        told_signal = PATHS.get(scope["path"], "")
        media_type = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        answer_encoding: Encoding = _MEDIA_TYPES.get(media_type, "json")
        extra: tuple[tuple[bytes, bytes], ...] = ()
        try:
            signal, encoding, content_encoding = self._check(scope, headers, media_type)
            body = await self._read(headers, receive)
            http_status = 200
            answer = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._take, signal, encoding, content_encoding, body
            )
        except _Disconnected:
            self._intake.counters.add("refused", "http", told_signal, reason="disconnected")
            return
        except _Refusal as refusal:
            self._intake.counters.add("refused", "http", told_signal, reason=refusal.reason)
            http_status, extra = refusal.http_status, refusal.headers
            answer = status_bytes(refusal.status, answer_encoding)
        except Undecodable as error:
            http_status, answer = 400, status_bytes(bad_request(str(error)), answer_encoding)
        except Overloaded as error:
            http_status, extra = 503, ((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()),)
            answer = status_bytes(unavailable(str(error), error.retry_after_s), answer_encoding)
        except Exception:  # noqa: BLE001 - whatever failed, the sender gets an answer
            _log.exception("cannot store an OTLP request")
            self._intake.counters.add("refused", "http", told_signal, reason="internal")
            http_status, answer = (
                500,
                status_bytes(plain(Code.INTERNAL, "pdtrace failed; see its log"), answer_encoding),
            )
        all_headers = [
            (b"content-type", _CONTENT_TYPE[answer_encoding]),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": http_status, "headers": [*all_headers, *extra]})
        await send({"type": "http.response.body", "body": answer if scope["method"] != "HEAD" else b""})

    def _check(self, scope: Any, headers: dict[bytes, bytes], media_type: str) -> tuple[Signal, Encoding, str]:
        """Signal, encoding and content encoding ("" for none); refuses by path, method, token, type, encoding."""
        signal = PATHS.get(scope["path"])
        if signal is None:
            known = ", ".join(PATHS)
            raise _Refusal(404, plain(Code.NOT_FOUND, f"no such path; OTLP is at {known}"), "not_found")
        if scope["method"] != "POST":
            text = f"{scope['path']} takes POST only"
            raise _Refusal(405, plain(Code.UNIMPLEMENTED, text), "method", ((b"allow", b"POST"),))
        if self._authorization is not None and not hmac.compare_digest(
            headers.get(b"authorization", b""), self._authorization
        ):
            text = "this service needs the header Authorization: Bearer <token>"
            challenge = ((b"www-authenticate", b"Bearer"),)
            raise _Refusal(401, plain(Code.UNAUTHENTICATED, text), "unauthenticated", challenge)
        encoding = _MEDIA_TYPES.get(media_type)
        if encoding is None:
            text = f"content type must be application/x-protobuf or application/json, got {media_type[:80] or 'none'}"
            raise _Refusal(415, plain(Code.INVALID_ARGUMENT, text), "content_type")
        content_encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
        if content_encoding in ("", "identity"):
            return signal, encoding, ""
        if content_encoding not in ENCODINGS:
            text = f"content encoding must be one of identity, {', '.join(ENCODINGS)}, got {content_encoding[:80]}"
            raise _Refusal(415, plain(Code.INVALID_ARGUMENT, text), "content_encoding")
        return signal, encoding, content_encoding

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body_bytes:
            raise self._too_large(f"the body is larger than {self._max_body_bytes} bytes")
        parts: list[bytes] = []
        size = 0
        while True:
            try:
                message = await asyncio.wait_for(receive(), _BODY_TIMEOUT_S)
            except TimeoutError:
                text = f"no more of the body came for {_BODY_TIMEOUT_S:g} s"
                raise _Refusal(408, plain(Code.DEADLINE_EXCEEDED, text), "timeout", _CLOSE) from None
            if message["type"] == "http.disconnect":
                raise _Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise self._too_large(f"the body is larger than {self._max_body_bytes} bytes")
            if not message.get("more_body"):
                return b"".join(parts)

    def _too_large(self, text: str) -> _Refusal:
        return _Refusal(413, plain(Code.RESOURCE_EXHAUSTED, f"{text}: send smaller batches"), "too_large", _CLOSE)

    def _take(self, signal: Signal, encoding: Encoding, content_encoding: str, body: bytes) -> bytes:
        if content_encoding:
            try:
                body = inflate(content_encoding, body, self._max_body_bytes)
            except TooLarge as error:
                raise self._too_large(str(error)) from error
            except Corrupt as error:
                raise _Refusal(400, bad_request(str(error)), "corrupt") from error
        return success(signal, encoding, self._intake.take(signal, body, encoding, "http"))


_CLOSE: Final = ((b"connection", b"close"),)
