"""The router's calls to prefill and decode workers, as an httpx client sees them.

Owns what a leg looks like from outside: trace context and request id go in, failures and, if asked, the whole visit come
out. What happened inside a worker is the worker's to report.

    one leg   send ........ headers ........ last byte or close        worker: host:port, or the name given
              |------------- prefill_opaque / decode_opaque --------|  only with opaque=True, or if it failed
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Final, Literal, TypeVar

import httpx

from pdtrace.instrumentation.asgi import INFERENCE_PATHS
from pdtrace.instrumentation.current import Current, current
from pdtrace.instrumentation.openai_stream import AnswerReader

log = logging.getLogger(__name__)

Role = Literal["prefill", "decode", "aggregated"]
Client = TypeVar("Client", httpx.Client, httpx.AsyncClient)

_STAGE: Final[dict[Role, str]] = {
    "prefill": "prefill_opaque",
    "decode": "decode_opaque",
    "aggregated": "prefill_opaque",
}


def instrument(
    client: Client, role: Role, *, worker: str = "", opaque: bool = False, paths: Iterable[str] = INFERENCE_PATHS
) -> Client:
    """Trace the calls of ``client`` to workers of one role; gives the same client back.

    Args:
        client: An httpx client, for one role only.
        role: What the workers that it calls do.
        worker: Their id, if it is one worker; "" = host:port of the call.
        opaque: The workers report nothing themselves: the call stands for the visit. A worker that does report is
            better, so the default is to say only what no worker can say (that a call to it failed).
        paths: A POST to a path that ends with one of these is a leg; everything else passes untouched.
    """
    if isinstance(client, httpx.AsyncClient):
        client._transport = AsyncTracedTransport(client._transport, role, worker=worker, opaque=opaque, paths=paths)
        for pattern, way in client._mounts.items():
            if way is not None:
                client._mounts[pattern] = AsyncTracedTransport(way, role, worker=worker, opaque=opaque, paths=paths)
    else:
        client._transport = TracedTransport(client._transport, role, worker=worker, opaque=opaque, paths=paths)
        for pattern, way in client._mounts.items():
            if way is not None:
                client._mounts[pattern] = TracedTransport(way, role, worker=worker, opaque=opaque, paths=paths)
    return client


class _Tracer:
    """What the two transports share: which calls are legs, and how one begins."""

    def __init__(self, role: Role, worker: str, opaque: bool, paths: Iterable[str]) -> None:
        self.role = role
        self._worker = worker
        self._opaque = opaque
        self._paths = tuple(paths)

    def begin(self, request: httpx.Request) -> _Leg | None:
        """None where no record is current, for other paths, and if anything is wrong."""
        try:
            now = current()
            path = request.url.path
            if (
                request.method != "POST"
                or not path.endswith(self._paths)
                or not (now.request_id or now.record.traceparent)
            ):
                return None
            inject(request.headers, now)
            worker = self._worker or f"{request.url.host}:{request.url.port or _default_port(request.url)}"
            return _Leg(now, self.role, worker, self._opaque)
        except Exception:  # the call must be made, whatever is wrong with our telemetry
            log.warning("a call to a worker is not traced", exc_info=True)
            return None


def inject(headers: httpx.Headers, now: Current) -> None:
    """Trace context and request id of the current request, beside what a caller has set with better knowledge.

    A traceparent of the same trace names a span further in and stays; another one was only copied from the client's
    headers. An own request id stays too: some engines read addresses out of it.
    """
    ours = now.record.traceparent
    if ours and headers.get("traceparent", "")[3:35] != ours[3:35]:
        headers["traceparent"] = ours
    if now.request_id and "x-request-id" not in headers:
        headers["x-request-id"] = now.request_id


def _default_port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80


class _Leg:
    """One call to a worker, from the send to the end of its answer."""

    def __init__(self, now: Current, role: Role, worker: str, opaque: bool) -> None:
        self._now, self._role, self._worker, self._opaque = now, role, worker, opaque
        self._clock = now.record.clock
        self._attempt = now.failed_legs.get(role, 0)
        self._start_ns = self._clock.now_ns()
        self._failed = ""
        self._answer = AnswerReader() if role != "prefill" and not now.reads_tokens else None
        self._ended = False

    def answered(self, response: httpx.Response) -> None:
        """The worker's status is here."""
        if response.status_code >= 500:
            self._failed = f"HTTP {response.status_code} from {self._worker}"
        if response.headers.get("content-encoding", "identity") != "identity":
            self._answer = None

    def read(self, chunk: bytes) -> None:
        """A piece of the answer has come."""
        if self._answer is not None:
            for count in self._answer.feed(chunk):
                self._now.record.tokens(count or 1, self._clock.now_ns())

    def end(self, problem: BaseException | None = None) -> None:
        """The answer has ended, the call broke, or the caller has had enough; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        if isinstance(problem, Exception) and not self._failed:
            self._failed = f"{type(problem).__name__} from {self._worker}: {problem}".removesuffix(": ")
        if self._failed:
            self._now.failed_legs[self._role] = self._now.failed_legs.get(self._role, 0) + 1
            self._now.failed_role = self._role
        if self._opaque or self._failed:
            self._now.record.add(
                _STAGE[self._role],
                self._start_ns,
                self._clock.now_ns(),
                {"service.instance.id": self._worker, "pdtrace.worker.role": self._role},
                attempt=self._attempt,
                failed=self._failed,
            )


def _guarded(call: Callable[..., None], *arguments: Any) -> None:
    try:
        call(*arguments)
    except Exception:  # the answer must reach its caller, whatever is wrong with our reading of it
        log.warning("a call to a worker cannot be read further", exc_info=True)


class AsyncTracedTransport(httpx.AsyncBaseTransport):
    """An asynchronous transport whose inference calls are legs of the current request; arguments as `instrument`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport,
        role: Role,
        *,
        worker: str = "",
        opaque: bool = False,
        paths: Iterable[str] = INFERENCE_PATHS,
    ) -> None:
        self._inner = transport
        self._tracer = _Tracer(role, worker, opaque, paths)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        leg = self._tracer.begin(request)
        if leg is None:
            return await self._inner.handle_async_request(request)
        try:
            response = await self._inner.handle_async_request(request)
        except BaseException as problem:
            _guarded(leg.end, problem)
            raise
        _guarded(leg.answered, response)
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _AsyncStream(response.stream, leg)
        return response

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._inner.aclose()


class TracedTransport(httpx.BaseTransport):
    """A transport whose inference calls are legs of the current request; arguments as `instrument`."""

    def __init__(
        self,
        transport: httpx.BaseTransport,
        role: Role,
        *,
        worker: str = "",
        opaque: bool = False,
        paths: Iterable[str] = INFERENCE_PATHS,
    ) -> None:
        self._inner = transport
        self._tracer = _Tracer(role, worker, opaque, paths)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        leg = self._tracer.begin(request)
        if leg is None:
            return self._inner.handle_request(request)
        try:
            response = self._inner.handle_request(request)
        except BaseException as problem:
            _guarded(leg.end, problem)
            raise
        _guarded(leg.answered, response)
        if isinstance(response.stream, httpx.SyncByteStream):
            response.stream = _Stream(response.stream, leg)
        return response

    def close(self) -> None:
        """Close the transport inside."""
        self._inner.close()


class _AsyncStream(httpx.AsyncByteStream):
    """An answer on its way; the bytes pass as they are."""

    def __init__(self, stream: httpx.AsyncByteStream, leg: _Leg) -> None:
        self._stream, self._leg = stream, leg

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                _guarded(self._leg.read, chunk)
                yield chunk
        except BaseException as problem:
            _guarded(self._leg.end, problem)
            raise
        _guarded(self._leg.end)

    async def aclose(self) -> None:
        _guarded(self._leg.end)
        await self._stream.aclose()


class _Stream(httpx.SyncByteStream):
    """An answer on its way; the bytes pass as they are."""

    def __init__(self, stream: httpx.SyncByteStream, leg: _Leg) -> None:
        self._stream, self._leg = stream, leg

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                _guarded(self._leg.read, chunk)
                yield chunk
        except BaseException as problem:
            _guarded(self._leg.end, problem)
            raise
        _guarded(self._leg.end)

    def close(self) -> None:
        _guarded(self._leg.end)
        self._stream.close()
