"""A small OpenAI-compatible engine on a free port, which behaves as its requests say, and what it saw of them.

The request's `behave` chooses; the answers are those of real servers, cut into network pieces on purpose.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pdtrace.service.ports import listen, port_of


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny",
                                   "choices": [choice], **more}, ensure_ascii=False).encode() + b"\n\n"  # fmt: skip


ROLE = chunk({"role": "assistant", "content": ""})
WORDS = [chunk({"content": text}) for text in ("grüß ", "🙂 ", "dich")]
STOP = chunk({}, "stop")
USAGE = (
    b'data: {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [], '
    b'"usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}\n\n'
)
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error": {"message": "KV transfer failed", "type": "InternalServerError", "code": 500}}\n\n'
OVER_LONG = b'data: {"error": {"message": "maximum context length is 8 tokens", "code": 400}}\n\n'
UNARY = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "grüß dich"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
}  # fmt: skip

STREAMS: dict[str, list[bytes]] = {
    "stream": [ROLE, *WORDS, STOP, USAGE, DONE],
    "crlf": [part.replace(b"\n", b"\r\n") for part in (b": ping\n\n", ROLE, *WORDS, STOP, DONE)],
    "bytewise": [bytes([byte]) for part in (ROLE, WORDS[1], STOP, DONE) for byte in part],
    "at_once": [b"".join((ROLE, *WORDS, STOP, USAGE, DONE))],
    "reasoning": [ROLE, chunk({"reasoning_content": "hm"}), *WORDS, STOP, DONE],
    "error_first": [ERROR, DONE],
    "error_later": [ROLE, WORDS[0], ERROR],
    "over_long": [OVER_LONG, DONE],
    "cut": [ROLE, WORDS[0]],
    "huge": [ROLE, chunk({"content": "x" * 3_000_000}), WORDS[0], STOP, DONE],
}
WORD_COUNT = {"stream": 3, "crlf": 3, "bytewise": 1, "at_once": 3, "reasoning": 4, "error_first": 0, "error_later": 1,
              "over_long": 0, "cut": 1, "huge": 1}  # fmt: skip
REFUSALS = {"400": 400, "429": 429, "500": 500, "503": 503, "504": 504}


class Engine:
    """What the engine was sent, and how long it was listened to."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[dict[str, Any]] = []
        self.cancelled = threading.Event()  #: a stream without end was given up

    async def answer(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        self.seen.append({"headers": dict(request.headers), "body": asked, "path": request.url.path})
        behave = asked.get("behave", "stream" if asked.get("stream") else "unary")
        await asyncio.sleep(asked.get("wait_s", 0))
        if behave in REFUSALS:
            error = {"message": f"refused with {behave}", "type": "x", "code": REFUSALS[behave]}
            return JSONResponse({"error": error}, status_code=REFUSALS[behave])
        if behave == "unary":
            transfer = {"kv_transfer_params": {"remote_engine_id": "p0"}} if asked.get("kv_transfer_params") else {}
            return JSONResponse(UNARY | transfer)
        if behave == "gzip":
            body = gzip.compress(b"".join(STREAMS["stream"]), mtime=0)  # else it differs from one second to the next
            return Response(body, media_type="text/event-stream", headers={"content-encoding": "gzip"})
        return StreamingResponse(self._stream(behave, asked), media_type="text/event-stream")

    async def _stream(self, behave: str, asked: dict[str, Any]) -> AsyncIterator[bytes]:
        if behave == "endless":
            try:
                yield ROLE
                while True:
                    yield WORDS[0]
                    await asyncio.sleep(0.01)
            finally:
                self.cancelled.set()
        if behave == "reset":
            yield ROLE + WORDS[0]
            await asyncio.sleep(0.05)  # so that the piece is on its way before the connection goes
            raise ConnectionResetError("on purpose")
        for part in STREAMS[behave]:
            await asyncio.sleep(asked.get("step_s", 0))
            yield part

    async def echo(self, request: Request) -> Response:
        body = await request.body()
        told = {"method": request.method, "path": request.scope["raw_path"].decode(),
                "query": request.scope["query_string"].decode(), "headers": request.headers.raw, "body": body}  # fmt: skip
        headers = [[name.decode(), value.decode("latin-1")] for name, value in told["headers"]]
        answer = JSONResponse(told | {"headers": headers, "body": body.decode("latin-1")}, status_code=201)
        answer.raw_headers += [(b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"connection", b"x-secret"),
                               (b"x-secret", b"hop"), (b"keep-alive", b"timeout=5")]  # fmt: skip
        return answer

    async def models(self, request: Request) -> Response:
        return PlainTextResponse("tiny")


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """An ASGI application on a free port; gives its address."""
    listener = listen("127.0.0.1", 0, "the test")
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", proxy_headers=False, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port_of(listener)}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


@contextmanager
def engine() -> Iterator[Engine]:
    """A running engine."""
    it = Engine()
    methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"]
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", it.answer, methods=["POST"]),
            Route("/v1/completions", it.answer, methods=["POST"]),
            Route("/v1/models", it.models),
            Route("/{path:path}", it.echo, methods=methods),
        ]
    )
    with serving(app) as url:
        it.url = url
        yield it


def until(true: Any, within_s: float = 5.0) -> bool:
    """Whether ``true()`` comes true in time."""
    deadline = time.monotonic() + within_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
