"""The query API as an ASGI application: /v1/*, health, Prometheus metrics and the OpenAPI document.

Owns routing, status codes and the threads that reads run in. The questions are in endpoints.py, the answers come
from a Reader. Does not write anything.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pdtrace.api.arrow import ARROW, to_arrow, wants_arrow
from pdtrace.api.encode import JSON, to_json
from pdtrace.api.endpoints import ENDPOINTS, Endpoint, NotFound
from pdtrace.api.openapi import document
from pdtrace.api.parameters import parse
from pdtrace.reader.contract import BadQuestion, Reader

log = logging.getLogger(__name__)

#: Reads at a time. DuckDB uses every core for one query, so more would only slow the writer down.
READ_THREADS: Final = 4


@dataclass(slots=True)
class Backend:
    """What the API stands on; the service fills it in while it starts."""

    reader: Reader | None = None  #: None until the store is open and the write-ahead log is replayed
    waiting_for: str = "the store to open"  #: what readiness waits for, in words
    metrics: Callable[[], bytes] = bytes  #: the Prometheus text of this process


def make_app(backend: Backend) -> Starlette:
    """The application; ``backend`` may become ready later."""
    limiter = anyio.CapacityLimiter(READ_THREADS)
    # Ids are the callers' own and may hold a slash. The longest path comes first: {id:path} would take all of them.
    routes = [
        Route(endpoint.path.replace("}", ":path}"), _handler(endpoint, backend, limiter), methods=["GET"])
        for endpoint in sorted(ENDPOINTS, key=lambda endpoint: -len(endpoint.path))
    ]
    openapi = to_json(document())

    async def healthz(_: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(_: Request) -> Response:
        if backend.reader is None:
            return _error(503, f"not ready: waiting for {backend.waiting_for}; ask again in a moment")
        return _json({"status": "ready"})

    async def metrics(_: Request) -> Response:
        text = await anyio.to_thread.run_sync(backend.metrics)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi_json(_: Request) -> Response:
        return Response(openapi, media_type=JSON)

    routes += [
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/openapi.json", openapi_json, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error, Exception: _failed})


def _handler(
    endpoint: Endpoint, backend: Backend, limiter: anyio.CapacityLimiter
) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        reader = backend.reader
        if reader is None:
            return _error(503, f"not ready: waiting for {backend.waiting_for}; ask again in a moment")
        arrow = endpoint.rows and wants_arrow(request.headers.get("accept", ""))
        try:
            values = parse(endpoint.parameters, request.query_params.multi_items())
            values.update(request.path_params)
            body = await anyio.to_thread.run_sync(partial(_answer, endpoint, reader, values, arrow), limiter=limiter)
        except BadQuestion as problem:
            return _error(400, str(problem))
        except NotFound as problem:
            return _error(404, str(problem))
        return Response(body, media_type=ARROW if arrow else JSON)

    return handle


def _answer(endpoint: Endpoint, reader: Reader, values: dict[str, object], arrow: bool) -> bytes:
    """Ask and encode, both in the reading thread: a large answer must not hold the event loop."""
    answer = endpoint.answer(reader, values)
    return to_arrow(answer) if arrow else to_json(answer)


def _json(answer: object, status: int = 200) -> Response:
    return Response(to_json(answer), status_code=status, media_type=JSON)


def _error(status: int, text: str) -> Response:
    return _json({"error": text}, status)


async def _http_error(request: Request, problem: Exception) -> Response:
    status = problem.status_code if isinstance(problem, HTTPException) else 500
    if status == 404:
        return _error(404, f"no such path {request.url.path}; /openapi.json lists the paths")
    if status == 405:
        response = _error(405, f"{request.method} is not answered here; use GET")
        response.headers["Allow"] = "GET"
        return response
    return _error(status, str(getattr(problem, "detail", problem)))


async def _failed(request: Request, problem: Exception) -> Response:
    log.error("GET %s failed: %s: %s", request.url.path, type(problem).__name__, problem)
    return _error(500, f"the answer failed ({type(problem).__name__}: {problem}); the service log has the details")
