"""Processes that commands start: the service, the dashboard, the collectors.

Owns their command lines and stopping them by process id. Does not know what they do.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class NotInstalled(RuntimeError):
    """A part of pdtrace that the command needs is not installed; the text says how to install it."""


def dashboard_arguments(host: str, port: int) -> list[str]:
    """Command line of the dashboard.

    Raises:
        NotInstalled: The dashboard or Streamlit is not here.
    """
    package = importlib.util.find_spec("pdtrace_dashboard")
    if package is None or not package.submodule_search_locations or importlib.util.find_spec("streamlit") is None:
        raise NotInstalled("the dashboard is not installed here; pip install 'pdtrace[dashboard]'")
    script = Path(next(iter(package.submodule_search_locations))) / "app.py"
    return [
        sys.executable, "-m", "streamlit", "run", str(script),
        "--server.headless", "true",
        "--server.address", host,
        "--server.port", str(port),
        "--browser.gatherUsageStats", "false",
    ]  # fmt: skip


def collector_arguments(endpoint: str) -> list[str]:
    """Command line of the collectors.

    Raises:
        NotInstalled: They are not here.
    """
    if importlib.util.find_spec("pdtrace_collectors") is None:
        raise NotInstalled("the collectors are not installed here; pip install 'pdtrace[collectors]'")
    return [sys.executable, "-m", "pdtrace_collectors", "--endpoint", endpoint]


def start(
    arguments: list[str], extra_environment: Mapping[str, str], *, capture: bool = False
) -> subprocess.Popen[str]:
    """Start a child in a session of its own: a Ctrl-C reaches us alone, and we stop it in order.

    With ``capture`` its stdout can be read; otherwise it goes to our stderr, so that our stdout stays clean.
    """
    path = os.pathsep.join(entry for entry in sys.path if entry)  # a checkout's packages, as this process sees them
    return subprocess.Popen(  # noqa: S603 - our own modules, no shell
        arguments,
        env={**os.environ, "PYTHONPATH": path, **extra_environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if capture else sys.stderr,
        start_new_session=True,
        text=True,
    )


def stop(child: subprocess.Popen[str], timeout_s: float) -> None:
    """SIGTERM, and SIGKILL to whatever is left after ``timeout_s``."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait(5)


def free_port(host: str, port: int) -> int:
    """``port``, or a free one for 0 (Streamlit cannot say which port it took)."""
    if port:
        return port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        number: int = probe.getsockname()[1]
        return number
