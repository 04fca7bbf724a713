"""`pdtrace up`: service, dashboard and collectors of this machine, as one command.

Owns the order of starting and stopping. Each part is a process of its own, started as its own command.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import click

from pdtrace.cli import children
from pdtrace.cli.output import print_json
from pdtrace.cli.serve import service_options

_DRAIN_S: Final = 40.0  #: the service writes what it has acknowledged before it ends
_DASHBOARD_READY_S: Final = 60.0


class Stopped(Exception):
    """Ctrl-C or SIGTERM."""


@click.command("up")
@service_options
@click.option("--dashboard-port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="0: a free one.")
@click.option("--dashboard/--no-dashboard", "with_dashboard", default=True, help="Start the dashboard too.")
@click.option("--collectors/--no-collectors", "with_collectors", default=True, help="Start the collectors too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the addresses on stdout once all is ready.")
def command(
    db: Path,
    host: str,
    grpc_port: int,
    http_port: int,
    api_port: int,
    token: str | None,
    max_clock_shift: float,
    dashboard_port: int,
    with_dashboard: bool,
    with_collectors: bool,
    as_json: bool,
) -> None:
    """Start the service, the dashboard and the collectors; Ctrl-C or SIGTERM stops them all."""
    arguments = [
        sys.executable, "-m", "pdtrace.cli", "serve", "--json", "--db", str(db), "--host", host,
        "--grpc-port", str(grpc_port), "--http-port", str(http_port), "--api-port", str(api_port),
        "--max-clock-shift", str(max_clock_shift),
    ]  # fmt: skip
    secret = {"PDTRACE_TOKEN": token} if token else {}  # not on a command line, where every user could read it
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Bearer {token}"} if token else {}
    with _signals(), ExitStack() as running:
        try:
            service = children.start(arguments, secret, capture=True)
            running.callback(children.stop, service, _DRAIN_S)
            addresses = _ready_line(service)
            if with_dashboard:
                port = children.free_port(host, dashboard_port)
                dashboard = children.start(children.dashboard_arguments(host, port), {"PDTRACE_URL": addresses["api"]})
                running.callback(children.stop, dashboard, 10.0)
                addresses["dashboard"] = f"http://{host}:{port}"
                _wait_for_dashboard(addresses["dashboard"], dashboard)
            collectors = None
            if with_collectors:
                collectors = children.start(children.collector_arguments(addresses["grpc"]), headers)
                running.callback(children.stop, collectors, 10.0)
            if as_json:
                print_json(addresses)
            else:
                for name, address in addresses.items():
                    print(f"{name:10} {address}")
                print("Ctrl-C stops all")
            sys.stdout.flush()
            _watch(service, dashboard if with_dashboard else None, collectors)
        except Stopped:
            pass


def _ready_line(service: subprocess.Popen[str]) -> dict[str, str]:
    assert service.stdout is not None
    line = service.stdout.readline()
    if not line:
        service.wait(10)
        raise click.ClickException(f"the service did not start (exit status {service.returncode}); it says why above")
    addresses: dict[str, str] = json.loads(line)
    return addresses


def _wait_for_dashboard(address: str, dashboard: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _DASHBOARD_READY_S
    while time.monotonic() < deadline:
        if dashboard.poll() is not None:
            raise click.ClickException(
                f"the dashboard ended with exit status {dashboard.returncode}; it says why above"
            )
        try:
            with urllib.request.urlopen(f"{address}/_stcore/health", timeout=2):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise click.ClickException(f"the dashboard at {address} is not ready after {_DASHBOARD_READY_S:.0f} s")


def _watch(
    service: subprocess.Popen[str], dashboard: subprocess.Popen[str] | None, collectors: subprocess.Popen[str] | None
) -> None:
    """Wait for a signal; the end of the service or the dashboard is a failure, that of the collectors a remark."""
    while True:
        if service.poll() is not None:
            raise click.ClickException(f"the service ended with exit status {service.returncode}; it says why above")
        if dashboard is not None and dashboard.poll() is not None:
            raise click.ClickException(
                f"the dashboard ended with exit status {dashboard.returncode}; it says why above"
            )
        if collectors is not None and collectors.poll() is not None:
            print(f"pdtrace: the collectors ended (exit status {collectors.returncode})", file=sys.stderr)
            collectors = None
        time.sleep(0.2)


@contextmanager
def _signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Stopped here, once: a second one must not interrupt the stopping."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
