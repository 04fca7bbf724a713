"""`pdtrace serve`: the service process.

Owns the options and what is printed when it is ready. The process is pdtrace.service's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pdtrace.cli.options import clock_shift_option
from pdtrace.cli.output import print_json

DEFAULT_DB = Path("pdtrace.duckdb")


def service_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of every command that starts a service."""
    port = click.IntRange(0, 65535)
    for option in reversed((
        click.option("--db", type=click.Path(path_type=Path, dir_okay=False), envvar="PDTRACE_DB", default=DEFAULT_DB,
                     show_default=True, help="The store file; made if it does not exist."),
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option("--grpc-port", type=port, default=4317, show_default=True, help="OTLP/gRPC; 0 takes a free one."),
        click.option("--http-port", type=port, default=4318, show_default=True, help="OTLP/HTTP; 0 takes a free one."),
        click.option("--api-port", type=port, default=4320, show_default=True, help="Query API; 0 takes a free one."),
        click.option("--token", envvar="PDTRACE_TOKEN", help="Bearer token that senders of telemetry must show."),
        clock_shift_option,
    )):  # fmt: skip
        command = option(command)
    return command


@click.command("serve")
@service_options
@click.option("--run", help="Label of the requests that arrive.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the addresses on stdout once it is ready.")
def command(
    db: Path,
    host: str,
    grpc_port: int,
    http_port: int,
    api_port: int,
    token: str | None,
    max_clock_shift: float,
    run: str | None,
    as_json: bool,
) -> None:
    """Receive OTLP over gRPC and HTTP, derive requests, answer the query API; SIGTERM drains and stops."""
    from pdtrace.service.process import Settings, serve

    def ready(addresses: dict[str, str]) -> None:
        if as_json:
            print_json(addresses)
        else:
            for name, address in addresses.items():
                print(f"{name:10} {address}")
        sys.stdout.flush()

    serve(
        Settings(
            db=db,
            host=host,
            grpc_port=grpc_port,
            http_port=http_port,
            api_port=api_port,
            token=token,
            run=run,
            max_clock_shift_ns=round(max_clock_shift * 1e6),
        ),
        ready,
    )
