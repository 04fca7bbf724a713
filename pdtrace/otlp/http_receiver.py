"""The OTLP/HTTP receiver (4318): serves http_app.py with uvicorn in a thread of its own.

Owns the socket and the server's life. The rules of OTLP/HTTP are in http_app.py.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import uvicorn
import uvloop

from pdtrace.otlp.http_app import OtlpHttpApp
from pdtrace.otlp.intake import Intake

_START_TIMEOUT_S = 10.0


class HttpReceiver:
    """Listens from construction on (so a taken port is told at once), answers between ``start`` and ``stop``.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        intake: Intake,
        *,
        host: str = "127.0.0.1",
        port: int = 4318,
        token: str | None = None,
        max_body_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise OSError(f"cannot listen for OTLP/HTTP on {host}:{port}: {error}; is the port taken?") from error
        self.port: int = self._socket.getsockname()[1]
        self.address = f"{host}:{self.port}"
        app = OtlpHttpApp(intake, token=token, max_body_bytes=max_body_bytes)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=5,
            )
        )
        self._thread = threading.Thread(target=self._run, name="otlp-http", daemon=True)

    def start(self) -> None:
        """Begin to accept; returns when requests are answered."""
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the OTLP/HTTP receiver on {self.address} did not start; see the log")
            time.sleep(0.005)

    def stop(self) -> None:
        """Let running requests finish, then close."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._server.serve(sockets=[self._socket]))
