"""`pdtrace dashboard`: the pages, in front of a running service.

Owns the options. The pages are pdtrace_dashboard's.
"""

from __future__ import annotations

import os
import sys

import click

from pdtrace.cli import children
from pdtrace.cli.options import DEFAULT_URL


@click.command("dashboard")
@click.option("--url", envvar="PDTRACE_URL", default=DEFAULT_URL, show_default=True, help="The service to ask.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8501, show_default=True, help="0 takes a free one.")
def command(url: str, host: str, port: int) -> None:
    """Start the dashboard of a running service."""
    port = children.free_port(host, port)
    arguments = children.dashboard_arguments(host, port)
    print(f"dashboard http://{host}:{port} of the service at {url}", flush=True)
    # This process becomes Streamlit, so that signals and the exit status are its own.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    os.execve(arguments[0], arguments, {**os.environ, "PYTHONPATH": path, "PDTRACE_URL": url})  # noqa: S606
