"""The life of the proxy process: check the upstreams, listen, pass on, drain, flush.

Owns the order of these steps and signals. The exchanges are app.py's, the records the middleware's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import httpx
import uvicorn

from pdtrace.instrumentation import HttpExporter, Recorder, Resource
from pdtrace.instrumentation.asgi import PdtraceMiddleware
from pdtrace.instrumentation.httpx_client import AsyncTracedTransport, Role
from pdtrace.proxy.app import ProxyApp, UpstreamBroke
from pdtrace.proxy.headers import BadUpstream, parse_upstream
from pdtrace.proxy.prefill_first import PrefillFirst
from pdtrace.service.ports import listen, port_of

log = logging.getLogger(__name__)

_DRAIN_S: Final = 10  #: for answers that are still streaming when the proxy is told to stop
_FLUSH_S: Final = 5.0
_CONNECT_S: Final = 5.0
_POOL_S: Final = 30.0
_KEEP_ALIVE_S: Final = 2.0  #: shorter than engines' own (uvicorn: 5 s): a call must not meet a connection being closed


@dataclass(frozen=True, slots=True)
class Settings:
    """What `pdtrace proxy` was asked for."""

    upstream: str  #: base address of the engine, or of D
    prefill_upstreams: tuple[str, ...] = ()  #: of P workers: each completion goes to one of them first
    host: str = "127.0.0.1"
    port: int = 8080  #: 0 = a free one
    endpoint: str = "http://127.0.0.1:4318"  #: OTLP/HTTP receiver
    token: str | None = None  #: bearer token that it wants
    name: str = "pdtrace-proxy"  #: service.name of the spans
    run: str = ""
    timeout_s: float = 600.0  #: the longest silence of an upstream
    max_connections: int = 1000  #: to each kind of upstream at a time
    opaque: bool = False  #: the engines report nothing themselves
    sample: float = 1.0
    check: bool = True  #: refuse to start where an upstream does not accept connections


def serve(settings: Settings, ready: Callable[[dict[str, str]], None]) -> None:
    """Run until SIGTERM or SIGINT; ``ready`` gets the addresses (proxy, upstream) once it listens.

    Raises:
        BadUpstream, PortTaken: It could not start.
    """
    logging.basicConfig(level=logging.WARNING, format="pdtrace proxy: %(message)s", stream=sys.stderr)
    upstream = parse_upstream(settings.upstream)
    prefills = [parse_upstream(text) for text in settings.prefill_upstreams]
    if settings.check:
        for url in (upstream, *prefills):
            _check_accepts(url)
    listener = listen(settings.host, settings.port, "the proxy")
    with contextlib.closing(listener):
        port = port_of(listener)
        if any(url.port == port and url.host == settings.host for url in (upstream, *prefills)):
            raise BadUpstream(f"{settings.host}:{port} is the proxy itself; give the engine's address as upstream")
        resource = Resource(service_name=settings.name, host_name=socket.gethostname(), run=settings.run)
        headers = {"authorization": f"Bearer {settings.token}"} if settings.token else {}
        recorder = Recorder(resource, HttpExporter(settings.endpoint, headers), sample=settings.sample)
        try:
            _run(make_app(settings, recorder), listener, lambda: ready(_addresses(settings, port)))
        finally:
            recorder.shutdown(_FLUSH_S)


def make_app(settings: Settings, recorder: Recorder) -> Any:
    """The whole ASGI application: middleware around the proxy, traced transports inside it."""
    timeout = httpx.Timeout(settings.timeout_s, connect=_CONNECT_S, pool=_POOL_S)
    upstream = parse_upstream(settings.upstream)
    prefills = [parse_upstream(text) for text in settings.prefill_upstreams]

    def transport(role: Role) -> httpx.AsyncBaseTransport:
        limits = httpx.Limits(
            max_connections=settings.max_connections, max_keepalive_connections=100, keepalive_expiry=_KEEP_ALIVE_S
        )
        return AsyncTracedTransport(
            httpx.AsyncHTTPTransport(limits=limits, trust_env=False), role, opaque=settings.opaque
        )

    app: Any
    if prefills:
        app = PrefillFirst(ProxyApp(upstream, transport("decode"), timeout), prefills, transport("prefill"), timeout)
    else:
        app = ProxyApp(upstream, transport("aggregated"), timeout)
    return _quiet(PdtraceMiddleware(app, recorder))


def _quiet(app: Any) -> Any:
    """Ends that are no fault of ours: the server closes the connection, and no stack is printed.

    They are a broken upstream, and what is still streaming when the time to drain is over.
    """

    async def served(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(UpstreamBroke, asyncio.CancelledError):
            await app(scope, receive, send)

    return served


def _check_accepts(url: httpx.URL) -> None:
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        socket.create_connection((url.host, port), timeout=_CONNECT_S).close()
    except OSError as problem:
        raise BadUpstream(
            f"upstream {url} does not accept connections ({problem}); start it first, or pass --no-check"
        ) from None


def _addresses(settings: Settings, port: int) -> dict[str, str]:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return {"proxy": f"http://{host}:{port}", "upstream": settings.upstream, "endpoint": settings.endpoint}


def _run(app: Any, listener: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=False,  # the upstream's own passes
        proxy_headers=False,  # a client's claim of another address is passed on, not believed
        timeout_keep_alive=60,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    server = _Server(config, ready)

    def asked(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn takes the signals while it runs and gives a caught one back to these handlers when it has stopped.
    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Tells when it accepts connections."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the sockets, then say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()
