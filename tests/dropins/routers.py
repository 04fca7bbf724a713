"""Small routers as people write them: Starlette and FastAPI, each streaming an engine's answer through httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

MakeClient = Callable[[], httpx.AsyncClient]
_PASSED = ("content-type", "content-encoding", "traceparent", "x-request-id")


class _Client:
    """One client, made in the event loop that uses it."""

    def __init__(self, make: MakeClient) -> None:
        self._make = make
        self._client: httpx.AsyncClient | None = None

    def get(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = self._make()
        return self._client


def _passed(headers: Any) -> dict[str, str]:
    return {name: headers[name] for name in _PASSED if name in headers}


def starlette_router(engine: str, make_client: MakeClient = httpx.AsyncClient) -> Starlette:
    """Passes the engine's answer on with its status; closes the call in a background task."""
    client = _Client(make_client)

    async def chat(request: Request) -> Response:
        body = await request.body()
        call = client.get().build_request(
            "POST", f"{engine}{request.url.path}", content=body, headers=_passed(request.headers)
        )
        answer = await client.get().send(call, stream=True)
        headers = _passed(answer.headers)
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, headers, background=BackgroundTask(answer.aclose)
        )

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


def fastapi_router(engine: str, make_client: MakeClient = httpx.AsyncClient) -> FastAPI:
    """Raises for refusals, streams the rest from a generator, as vLLM's example proxies do."""
    client = _Client(make_client)
    app = FastAPI()

    @asynccontextmanager
    async def call(request: Request) -> AsyncIterator[httpx.Response]:
        asked = await request.json()
        async with client.get().stream(
            "POST", f"{engine}{request.url.path}", json=asked, headers=_passed(request.headers)
        ) as answer:
            yield answer

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        context = call(request)
        answer = await context.__aenter__()
        if answer.status_code != 200:
            text = (await answer.aread()).decode()
            await context.__aexit__(None, None, None)
            raise HTTPException(answer.status_code, text)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.aiter_raw():
                    yield piece
            finally:
                await context.__aexit__(None, None, None)

        encoding = {k: v for k, v in answer.headers.items() if k == "content-encoding"}
        return StreamingResponse(pieces(), media_type=answer.headers["content-type"], headers=encoding)

    return app
