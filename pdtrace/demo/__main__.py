"""`python -m pdtrace.demo`: replay the recordings into a service, for ever; with --up, start that service too.

Owns the loop in wall time and the processes: the service, and a simulated cluster that walks through its scenarios.
What is replayed and when is decided in pdtrace.demo.replay.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from types import FrameType
from urllib.parse import urlsplit

from pdtrace.demo.recording import TRACKS, load
from pdtrace.demo.replay import Track
from pdtrace.demo.sender import Sender

_TICK_S = 1.0  # a batching exporter's delay
_JUMP_NS = 60_000_000_000  # the clock jumped (a suspended machine): start anew instead of catching up
_READY_S = 90


def main(argv: list[str] | None = None) -> int:
    """Run until Ctrl-C, SIGTERM or --seconds; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pdtrace.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="http://127.0.0.1:4317", help="OTLP/gRPC receiver (%(default)s)")
    parser.add_argument(
        "--backfill", type=float, default=0.0, metavar="S", help="first send the last S seconds at once"
    )
    parser.add_argument(
        "--seconds", type=float, default=None, metavar="S", help="stop after S seconds (default: never)"
    )
    parser.add_argument(
        "--simulate", default="http://127.0.0.1:4318", metavar="URL",
        help="OTLP/HTTP receiver for a simulated cluster; none: recordings only (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--up", action="store_true", help="start `pdtrace up` first, and stop it at the end")
    parser.add_argument("--db", default="demo-data/demo.duckdb", help="with --up: the database file (%(default)s)")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="pdtrace demo: %(message)s")
    signal.signal(signal.SIGTERM, _interrupt)

    service = simulation = None
    sender = None
    try:
        if options.up:
            service = _start_service(options.db)
        _wait_for_port(options.endpoint, service)
        sender = Sender(options.endpoint)
        if options.simulate != "none":
            simulation = _start_simulation(options.simulate)
        told = "recorded Dynamo and vLLM traffic" + ("" if simulation is None else " and a simulated cluster")
        print(f"sending {told}; Ctrl-C stops", file=sys.stderr, flush=True)  # noqa: T201
        _replay(sender, options.backfill, options.seconds, service)
    except KeyboardInterrupt:
        pass
    except RuntimeError as error:
        print(f"pdtrace demo: {error}", file=sys.stderr)  # noqa: T201
        return 1
    finally:
        if sender is not None:
            sender.close()
        for process in (simulation, service):
            if process is not None:
                _stop(process)
    return 0


def _replay(sender: Sender, backfill_s: float, seconds: float | None, service: subprocess.Popen[bytes] | None) -> None:
    start_ns = time.time_ns()
    end_ns = None if seconds is None else start_ns + round(seconds * 1e9)
    tracks = _tracks(start_ns - round(backfill_s * 1e9))
    last_ns = start_ns
    while end_ns is None or last_ns < end_ns:
        if service is not None and service.poll() is not None:
            raise RuntimeError(f"the service ended by itself with exit code {service.returncode}; its output says why")
        now_ns = time.time_ns()
        if now_ns - last_ns > _JUMP_NS:
            tracks = _tracks(now_ns)
        for track in tracks:
            sender.send(list(track.due(now_ns)))
        last_ns = now_ns
        time.sleep(_TICK_S)


def _tracks(start_ns: int) -> list[Track]:
    tag = os.urandom(3).hex()  # a demo started later must not repeat the ids of an earlier one in the same database
    return [Track([load(name) for name in names], start_ns, f"{tag}{index}.") for index, names in enumerate(TRACKS)]


def _start_service(db: str) -> subprocess.Popen[bytes]:
    # Its own session: a Ctrl-C reaches this process alone, which then stops the service in order.
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pdtrace", "up", "--db", db], start_new_session=True
    )


def _start_simulation(endpoint: str) -> subprocess.Popen[bytes]:
    """A live load with a cause that changes: every scenario in turn, through pdtrace's own instrumentation."""
    arguments = ["--scenario", "walk", "--realtime", "--loop", "--endpoint", endpoint]
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "pdtrace", "simulate", *arguments], stdout=subprocess.DEVNULL, start_new_session=True
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_for_port(endpoint: str, service: subprocess.Popen[bytes] | None) -> None:
    where = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}")
    if where.hostname is None or where.port is None:
        raise RuntimeError(f"--endpoint {endpoint} has no host and port; http://127.0.0.1:4317 would be right")
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            socket.create_connection((where.hostname, where.port), timeout=2).close()
            return
        except OSError as error:
            if service is not None and service.poll() is not None:
                raise RuntimeError(
                    f"`pdtrace up` ended with exit code {service.returncode}; its output says why"
                ) from error
            if service is None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"nothing answers at {endpoint}; start `pdtrace up` first, or give the address of a running one "
                    "with --endpoint"
                ) from error
        time.sleep(0.2)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
