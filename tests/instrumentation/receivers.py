"""Receivers that misbehave as told: one over HTTP, byte by byte, one over gRPC.

Owns fixtures only. Answers are taken one a request; when they are used up, everything is taken.
"""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from tests.instrumentation.reading import Span, spans_of


def answer(status: int, content: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(content) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


@dataclass(frozen=True)
class Then:
    """An answer, and what becomes of the connection."""

    content: bytes = b""
    close: bool = False  #: close the connection after it, as if idle for too long
    hang_s: float = 0.0  #: first say nothing for so long
    pause_s: float = 0.0  #: before each byte of the answer


OK = Then(answer(200))
CLOSED = Then(close=True)  # took the body and went away without a word


class Http:
    """An HTTP receiver on a free port."""

    def __init__(self, *answers: Then) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[str, dict[str, str], bytes]] = []  #: path, headers, body of every request
        self.taken: list[bytes] = []  #: bodies of traces that were answered with 2xx
        self.connections = 0
        self.released = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as incoming:
                while self._one(connection, incoming):
                    pass
        except OSError:
            pass

    def _one(self, connection: socket.socket, incoming: Any) -> bool:
        """One request; False when the connection is over."""
        first = incoming.readline()
        if not first:
            return False
        headers: dict[str, str] = {}
        while (line := incoming.readline().strip()) and line:
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        body = incoming.read(int(headers["content-length"]))
        if headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        path = first.split()[1].decode()
        then = self.answers.pop(0) if self.answers else OK
        if then.content.startswith(b"HTTP/1.1 2") and path.endswith("/v1/traces"):
            self.taken.append(body)
        self.seen.append((path, headers, body))
        if then.hang_s:
            self.released.wait(then.hang_s)
        if then.pause_s:
            for byte in then.content:
                self.released.wait(then.pause_s)
                connection.sendall(bytes((byte,)))
        else:
            connection.sendall(then.content)
        return not then.close

    def spans(self) -> list[Span]:
        """Spans that were taken."""
        return [span for body in list(self.taken) for span in spans_of(body)]

    def close(self) -> None:
        """Stop, and cut what is open."""
        self.released.set()
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


@contextmanager
def http_receiver(*answers: Then) -> Iterator[Http]:
    """An HTTP receiver for the length of a test."""
    receiver = Http(*answers)
    try:
        yield receiver
    finally:
        receiver.close()


def refused_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Refuse:
    """A gRPC failure."""

    code: grpc.StatusCode
    retry_after_s: float | None = None
    details: bytes | None = None  #: trailing metadata in place of a well-made one


class Grpc:
    """A gRPC receiver on a free port."""

    def __init__(self, *answers: bytes | Refuse | float) -> None:
        self.answers = list(answers)  #: an answer, a failure, or seconds to say nothing
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        self.taken: list[bytes] = []
        self.server = grpc.server(ThreadPoolExecutor(2))
        self.server.add_generic_rpc_handlers((_Handler(self),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.target = f"127.0.0.1:{self.port}"
        self.server.start()

    def take(self, method: str, body: bytes, context: Any) -> bytes:
        """One call."""
        metadata = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        self.seen.append((method, metadata, body))
        then = self.answers.pop(0) if self.answers else b""
        if isinstance(then, float):
            time.sleep(then)
            return b""
        if isinstance(then, Refuse):
            if then.details is not None:
                context.set_trailing_metadata((("grpc-status-details-bin", then.details),))
            elif then.retry_after_s is not None:
                seconds, part = divmod(then.retry_after_s, 1)
                wait = Duration(seconds=int(seconds), nanos=int(part * 1e9))
                detail = AnyMessage()
                detail.Pack(RetryInfo(retry_delay=wait))
                status = Status(code=then.code.value[0], details=[detail])
                context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(then.code, "no")
        self.taken.append(body)
        return then

    def spans(self) -> list[Span]:
        """Spans that were taken."""
        return [span for body in list(self.taken) for span in spans_of(body)]


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, receiver: Grpc) -> None:
        self._receiver = receiver

    def service(self, details: Any) -> Any:
        """Every method, bytes in and bytes out."""
        return grpc.unary_unary_rpc_method_handler(
            lambda body, context: self._receiver.take(details.method, body, context)
        )


@contextmanager
def grpc_receiver(*answers: bytes | Refuse | float) -> Iterator[Grpc]:
    """A gRPC receiver for the length of a test."""
    receiver = Grpc(*answers)
    try:
        yield receiver
    finally:
        receiver.server.stop(None).wait(5)


def wait_for(true: Callable[[], Any], within_s: float = 10.0) -> None:
    """Until it is so; fails if it never is."""
    until_s = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.005)
