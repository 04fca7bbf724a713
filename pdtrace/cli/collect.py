"""`pdtrace collect`: the collectors of this machine's devices.

Owns nothing but the hand-over; options and work are pdtrace_collectors'.
"""

from __future__ import annotations

import os
import sys

import click

from pdtrace.cli import children


@click.command("collect", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--endpoint", default="http://127.0.0.1:4317", show_default=True, help="OTLP receiver to send to.")
@click.pass_context
def command(context: click.Context, endpoint: str) -> None:
    """Start the collectors; further options are theirs (python -m pdtrace_collectors --help)."""
    arguments = [*children.collector_arguments(endpoint), *context.args]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    os.execve(arguments[0], arguments, {**os.environ, "PYTHONPATH": path})  # noqa: S606
