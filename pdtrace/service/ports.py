"""Listening sockets and HTTP servers in threads.

Owns binding (so that port 0 can be told and a taken port is one clear sentence) and stopping uvicorn in order.
"""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import uvicorn


class PortTaken(RuntimeError):
    """The address cannot be listened on; the text says which one and what to do."""


def listen(host: str, port: int, what: str) -> socket.socket:
    """A listening TCP socket; port 0 takes a free one.

    Raises:
        PortTaken: Somebody else has it, or the host is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as problem:
        listener.close()
        taken = isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE
        why = "is taken; stop its owner or choose another port" if taken else f"cannot be used ({problem})"
        raise PortTaken(f"{host}:{port} for {what} {why}") from problem
    return listener


def port_of(listener: socket.socket) -> int:
    """The port a socket listens on."""
    port: int = listener.getsockname()[1]
    return port


class HttpServer:
    """One ASGI application on one socket, in a thread of its own with its own event loop.

    asyncio and uvloop set TCP_NODELAY on every connection, so small answers do not wait for an acknowledgement.
    """

    def __init__(self, app: Any, listener: socket.socket, name: str) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=60,
            timeout_graceful_shutdown=5,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._listener = listener
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name=f"pdtrace-{name}", daemon=True
        )

    def start(self) -> None:
        """Start answering."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Let what is being answered finish, then close."""
        self._server.should_exit = True
        self._thread.join(timeout_s)
        self._listener.close()
