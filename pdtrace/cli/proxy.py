"""`pdtrace proxy`: the middleware as a ready program.

Owns the options and what is printed when it is ready. The process is pdtrace.proxy's.
"""

from __future__ import annotations

import sys

import click

from pdtrace.cli.output import print_json


@click.command("proxy")
@click.option("--upstream", required=True, metavar="URL", help="The engine, or D: http://127.0.0.1:8000.")
@click.option(
    "--prefill-upstream",
    "prefill_upstreams",
    multiple=True,
    metavar="URL",
    help="A P worker (vLLM): each completion goes to one of them first, then to --upstream. Repeatable.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option("--endpoint", default="http://127.0.0.1:4318", show_default=True, help="OTLP/HTTP receiver.")
@click.option("--token", envvar="PDTRACE_TOKEN", help="Bearer token for it.")
@click.option("--service-name", default="pdtrace-proxy", show_default=True, help="Name of the spans' service.")
@click.option("--run", default="", help="Label of the requests.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001),
    default=600.0,
    show_default=True,
    metavar="S",
    help="The longest silence of an upstream.",
)
@click.option(
    "--max-connections", type=click.IntRange(min=1), default=1000, show_default=True, help="To upstreams at a time."
)
@click.option("--opaque", is_flag=True, help="The engines send no telemetry: a call to one stands for its whole visit.")
@click.option("--sample", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Share of requests traced.")
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Refuse to start where an upstream accepts no connections.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the addresses on stdout once it is ready.")
def command(
    upstream: str,
    prefill_upstreams: tuple[str, ...],
    host: str,
    port: int,
    endpoint: str,
    token: str | None,
    service_name: str,
    run: str,
    timeout: float,
    max_connections: int,
    opaque: bool,
    sample: float,
    check: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Pass HTTP on to an OpenAI-compatible engine and trace each inference call; SIGTERM drains and stops."""
    from pdtrace.proxy.headers import BadUpstream, parse_upstream
    from pdtrace.proxy.process import Settings, serve

    for option, text in (("--upstream", upstream), *(("--prefill-upstream", one) for one in prefill_upstreams)):
        try:
            parse_upstream(text)
        except BadUpstream as problem:
            raise click.UsageError(f"{option}: {problem}") from None

    def ready(addresses: dict[str, str]) -> None:
        if as_json:
            print_json(addresses)
        else:
            for name, address in addresses.items():
                print(f"{name:10} {address}")
        sys.stdout.flush()

    serve(
        Settings(
            upstream=upstream,
            prefill_upstreams=prefill_upstreams,
            host=host,
            port=port,
            endpoint=endpoint,
            token=token,
            name=service_name,
            run=run,
            timeout_s=timeout,
            max_connections=max_connections,
            opaque=opaque,
            sample=sample,
            check=check,
        ),
        ready,
    )
