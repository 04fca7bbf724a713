"""The `pdtrace` command: its sub-commands, loaded when they are called, and what its exit status means.

Owns the list of commands and the one place that turns errors into a line on stderr. Does no work itself.

Exit status: 0 done, 1 it failed (one line says what, and what would be right), 2 wrong usage.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import Final

import click

from pdtrace import __version__
from pdtrace.reader.contract import BadQuestion

#: Command -> (module that holds it, what `pdtrace --help` says). The module is imported when the command runs.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "up": ("pdtrace.cli.up", "Start service, dashboard and collectors; Ctrl-C stops them."),
    "serve": ("pdtrace.cli.serve", "Receive telemetry and answer the query API."),
    "dashboard": ("pdtrace.cli.dashboard", "Start the dashboard."),
    "collect": ("pdtrace.cli.collect", "Start the collectors of this machine."),
    "proxy": ("pdtrace.cli.proxy", "Pass HTTP on to an engine and trace each inference call."),
    "ingest": ("pdtrace.cli.ingest", "Load files of telemetry into a store."),
    "requests": ("pdtrace.cli.requests", "List requests, a line each."),
    "trace": ("pdtrace.cli.trace", "Show one request in full."),
    "ttft": ("pdtrace.cli.ttft", "TTFT and where it went, per group."),
    "ledger": ("pdtrace.cli.ledger", "Offered requests by outcome."),
    "charge": ("pdtrace.cli.charge", "Apply the charging rule to given activities."),
    "export": ("pdtrace.cli.export", "Write Perfetto or Parquet files."),
    "simulate": ("pdtrace.cli.simulate", "Telemetry of a simulated cluster, with the right answers beside it."),
    "rederive": ("pdtrace.cli.rederive", "Rebuild every derived table from the raw telemetry."),
    "doctor": ("pdtrace.cli.doctor", "What was seen, what is missing, what can be believed."),
}


class _Lazy(click.Group):
    """A group that imports a command when it is asked for, so that --help and usage errors load nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="pdtrace")
def pdtrace() -> None:
    """Where did this time to first token go, and what would fix it?"""


def main() -> None:
    """Entry point of the `pdtrace` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit status; prints at most one line on stderr (usage errors: click's three)."""
    try:
        # Not pdtrace.main(): that would end the process by itself when stdout is a closed pipe.
        with pdtrace.make_context("pdtrace", arguments) as context:
            pdtrace.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:  # --help, --version
        return done.exit_code
    except click.UsageError as problem:
        problem.show()
        return 2
    except BadQuestion as problem:
        print("pdtrace:", problem, file=sys.stderr)
        return 2
    except click.ClickException as problem:
        return _failed(problem.format_message())
    except (click.Abort, KeyboardInterrupt):
        return _failed("interrupted")
    except BrokenPipeError:
        # The reader of our output has left (`| head`). Python would complain again when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as problem:  # noqa: BLE001 - the last line of defence: a sentence instead of a stack
        if os.environ.get("PDTRACE_DEBUG"):
            traceback.print_exc()
        return _failed(_sentence(problem))
    return 0


def _failed(text: str) -> int:
    print("pdtrace:", " ".join(text.split()), file=sys.stderr)
    return 1


def _sentence(problem: Exception) -> str:
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.filename}: {problem.strerror}; check the path and its permissions"
    if type(problem).__module__.startswith("pdtrace.") or (isinstance(problem, OSError) and problem.errno is None):
        return str(problem)  # our own errors are sentences already
    return f"{type(problem).__name__}: {problem}; run again with PDTRACE_DEBUG=1 for the details"
