"""Two upstreams, one for prefill and one for decode: the prompt goes to P first, then the request to D.

Owns vLLM's way of asking for that, and nothing of routing: P workers are taken in turn.

    client --> P: the same request, one token, do_remote_decode     P --> kv_transfer_params
           --> D: the request with P's kv_transfer_params           D --> the whole answer

Source: vLLM 0.11, tests/v1/kv_connector/nixl_integration/toy_proxy_server.py (fields of both calls).
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import httpx

from pdtrace.proxy.app import Message, ProxyApp, Receive, Scope, Send, answer_error, answer_failure, pass_on
from pdtrace.proxy.headers import request_headers, upstream_url

_MAX_BODY_BYTES: Final = 256 << 20
#: Formats whose request tells the engine how many tokens to make, which P needs to stop after one.
_PATHS: Final = ("/v1/chat/completions", "/v1/completions")
_ASK_P: Final = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class _TooLong(Exception):
    """A request's body is longer than is kept of one."""


class PrefillFirst:
    """Sends completions to a P worker and then to D; everything else to D alone.

    Args:
        decode: The proxy in front of D.
        prefills: Base addresses of P workers.
        transport: For the calls to P.
        timeout: Of each step of a call to P.
    """

    def __init__(
        self,
        decode: ProxyApp,
        prefills: Sequence[httpx.URL],
        transport: httpx.AsyncBaseTransport,
        timeout: httpx.Timeout,
    ) -> None:
        self._decode = decode
        self._next = itertools.cycle(prefills)
        self._transport = transport
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            UpstreamBroke: In the middle of an answer.
        """
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(_PATHS):
            await self._decode(scope, receive, send)
            return
        try:
            body = await _whole(receive)
        except _TooLong as problem:
            await answer_error(send, 413, "request_too_large", str(problem))
            return
        if body is None:
            return
        asked = _json_object(body)
        client = _Listener(receive)
        try:
            if asked is not None:
                prefill = asyncio.ensure_future(self._prefill(scope, asked, send))
                await asyncio.wait((prefill, client.gone), return_when=asyncio.FIRST_COMPLETED)
                if not prefill.done():
                    prefill.cancel()
                    await asyncio.wait({prefill})
                    return
                found = prefill.result()
                if found is None:
                    return
                body = json.dumps(asked | found).encode()
            await self._decode(_with_length(scope, len(body)), client.replay(body), send)
        finally:
            client.gone.cancel()

    async def _prefill(self, scope: Scope, asked: dict[str, Any], send: Send) -> dict[str, Any] | None:
        """What P adds to D's request; None if P refused or failed, which the client has then been told."""
        upstream = next(self._next)
        body = json.dumps(_for_prefill(asked)).encode()
        request = httpx.Request(
            "POST",
            upstream_url(upstream, dict(scope)),
            headers=request_headers(dict(_with_length(scope, len(body)))),
            content=body,
            extensions={"timeout": self._timeout.as_dict()},
        )
        try:
            response = await self._transport.handle_async_request(request)
            try:
                if response.status_code != 200:
                    await pass_on(response, send)
                    return None
                answer = _json_object(await response.aread()) or {}
            finally:
                await response.aclose()
        except httpx.HTTPError as problem:
            await answer_failure(send, problem, upstream)
            return None
        transfer = answer.get("kv_transfer_params")
        return {"kv_transfer_params": transfer} if transfer else {}


def _for_prefill(asked: dict[str, Any]) -> dict[str, Any]:
    """The request as P must see it: one token, in one piece."""
    kept = {name: value for name, value in asked.items() if name not in ("stream_options", "min_tokens")}
    limits = {"max_tokens": 1} | ({"max_completion_tokens": 1} if "max_completion_tokens" in asked else {})
    return kept | limits | {"stream": False, "kv_transfer_params": _ASK_P}


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


async def _whole(receive: Receive) -> bytes | None:
    """A request's body; None if the client went away first.

    Raises:
        _TooLong: It is more than any prompt holds.
    """
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > _MAX_BODY_BYTES:
            raise _TooLong(f"pdtrace proxy: a request for P and D may have {_MAX_BODY_BYTES >> 20} MiB")
        if not message.get("more_body", False):
            return b"".join(pieces)


def _with_length(scope: Scope, length: int) -> Scope:
    dropped = (b"content-length", b"transfer-encoding", b"content-encoding")
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    return {**scope, "headers": [*kept, (b"content-length", str(length).encode())]}


class _Listener:
    """Hears the client go while P works, and afterwards for the proxy in front of D."""

    def __init__(self, receive: Receive) -> None:
        self.gone: asyncio.Future[Message] = asyncio.ensure_future(self._listen(receive))

    async def _listen(self, receive: Receive) -> Message:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message

    def replay(self, body: bytes) -> Receive:
        """A `receive` that gives ``body`` and then the client's going."""
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return first.pop() if first else await asyncio.shield(self.gone)

        return receive
