"""The reverse proxy as an ASGI application: every method and path, answers streamed as they come.

Owns one exchange between client and upstream. Records nothing (the middleware around it does) and retries nothing: what
the upstream does, the client sees.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import httpx

from pdtrace.proxy.headers import request_headers, response_headers, upstream_url

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODY_PIECES: Final = 16  #: pieces of a request's body that may wait for a slow upstream


class UpstreamBroke(RuntimeError):
    """The upstream ended in the middle of its answer: the client must see a broken answer, not a short one."""


class ProxyApp:
    """Passes every HTTP request on to one upstream.

    Args:
        upstream: Base address.
        transport: Has the pool and its bounds; a transport and not a client, which would add headers of its own, keep
            cookies and follow redirects. Used in one event loop only.
        timeout: Of each step of a call.
    """

    def __init__(self, upstream: httpx.URL, transport: httpx.AsyncBaseTransport, timeout: httpx.Timeout) -> None:
        self._upstream = upstream
        self._transport = transport
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            UpstreamBroke: In the middle of an answer.
        """
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003, "reason": "this proxy passes HTTP on, no websockets"})
            return
        if scope["type"] != "http":
            return
        body = _Body(receive, _has_body(scope))
        exchange = asyncio.ensure_future(self._exchange(scope, body, send))
        try:
            await asyncio.wait({exchange, body.gone}, return_when=asyncio.FIRST_COMPLETED)
            if exchange.done():
                exchange.result()
        finally:
            body.stop()
            if not exchange.done():
                exchange.cancel()  # the client has gone: so does our call to the upstream
                await asyncio.wait({exchange})

    async def _exchange(self, scope: Scope, body: _Body, send: Send) -> None:
        request = httpx.Request(
            scope["method"],
            upstream_url(self._upstream, dict(scope)),
            headers=request_headers(dict(scope)),
            content=body if body.expected else None,
            extensions={"timeout": self._timeout.as_dict()},
        )
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.HTTPError as problem:
            await answer_failure(send, problem, self._upstream)
            return
        try:
            await pass_on(response, send)
        finally:
            await response.aclose()


async def pass_on(response: httpx.Response, send: Send) -> None:
    """An upstream's answer, byte for byte, as its pieces come.

    Raises:
        UpstreamBroke: It ended too early.
    """
    headers = response_headers(response.headers.raw)
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    try:
        async for chunk in response.aiter_raw():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except httpx.HTTPError as problem:
        raise UpstreamBroke(f"the upstream's answer broke off ({_words(problem)})") from problem
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def answer_failure(send: Send, problem: httpx.HTTPError, upstream: httpx.URL) -> None:
    """What a client gets where the upstream gives no answer."""
    if isinstance(problem, httpx.PoolTimeout):
        status, kind = 503, "proxy_overloaded"
    elif isinstance(problem, httpx.TimeoutException):
        status, kind = 504, "upstream_timeout"
    else:
        status, kind = 502, "upstream_unreachable"
    await answer_error(send, status, kind, f"pdtrace proxy: {upstream} gave no answer ({_words(problem)})")


async def answer_error(send: Send, status: int, kind: str, text: str) -> None:
    """An answer of the proxy's own: an error object as OpenAI's clients read it."""
    body = json.dumps({"error": {"message": text, "type": kind, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _words(problem: httpx.HTTPError) -> str:
    return f"{type(problem).__name__}: {problem}".removesuffix(": ")


def _has_body(scope: Scope) -> bool:
    return any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])


class _Body:
    """A request's body on its way up, and the one listener for the client's going.

    ASGI tells both through one call, so one task asks and hands out: pieces to the upstream call, the end to `gone`.
    """

    def __init__(self, receive: Receive, expected: bool) -> None:
        self.expected = expected
        self._receive = receive
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_BODY_PIECES)
        self.gone: asyncio.Future[None] = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        more = True
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                return
            if not more:
                continue
            piece, more = message.get("body", b""), message.get("more_body", False)
            if piece:
                await self._pieces.put(piece)
            if not more:
                await self._pieces.put(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._pieces.get()) is not None:
            yield piece

    def stop(self) -> None:
        self.gone.cancel()
