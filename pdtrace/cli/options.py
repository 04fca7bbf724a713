"""Options that several commands share: where to read from, the filters, times.

Owns names, types and usage errors of shared options. Opens nothing (see sources.py).
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from pdtrace.reader.contract import Filters

DEFAULT_URL: Final = "http://127.0.0.1:4320"

_RELATIVE: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNIT_NS: Final = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3_600 * 10**9, "d": 86_400 * 10**9}
_FRACTION: Final = re.compile(r"([T ]\d{2}:\d{2}:\d{2})[.,](\d{1,9})")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def parse_time(text: str, now_ns: int) -> int:
    """A point in time as Unix ns: ``1700000000000000000``, ``2026-01-31T12:00:00Z`` or ``15m`` (before ``now_ns``).

    Raises:
        ValueError: None of these, or an ISO time without a zone.
    """
    if re.fullmatch(r"\d{1,19}", text):
        return int(text)
    relative = _RELATIVE.fullmatch(text)
    if relative:
        return now_ns - round(float(relative[1]) * _UNIT_NS[relative[2]])
    # datetime keeps microseconds only: the fraction is taken out and added as nanoseconds.
    fraction = _FRACTION.search(text)
    try:
        moment = datetime.fromisoformat(_FRACTION.sub(r"\1", text))
    except ValueError:
        raise ValueError(
            f"{text!r} is no time; give Unix ns, ISO 8601 with a zone (2026-01-31T12:00:00Z) or an age like 15m"
        ) from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} names no time zone; append Z or an offset like +02:00")
    since_epoch = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since_epoch.days * 86_400 + since_epoch.seconds
    return seconds * 10**9 + (int(fraction[2].ljust(9, "0")) if fraction else 0)


def _time(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    del context, parameter  # click adds the option's name to the message
    try:
        return None if text is None else parse_time(text, time.time_ns())
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--db, --url and --json of every reading command; passes ``db``, ``url`` and ``as_json``."""

    @click.option("--db", type=click.Path(path_type=Path), envvar="PDTRACE_DB", help="Read this store file.")
    @click.option("--url", envvar="PDTRACE_URL", help=f"Ask this running service [default: {DEFAULT_URL}].")
    @click.option("--json", "as_json", is_flag=True, help="JSON on stdout: a line a row, or one object.")
    @functools.wraps(command)
    def with_source(**options: Any) -> Any:
        context = click.get_current_context()
        if options["db"] is not None and options["url"] is not None:
            # Both named on the command line is a mistake; otherwise the command line beats the environment.
            from_environment = click.core.ParameterSource.ENVIRONMENT
            if context.get_parameter_source("url") == from_environment:
                options["url"] = None
            elif context.get_parameter_source("db") == from_environment:
                options["db"] = None
            else:
                raise click.UsageError("--db and --url exclude each other; give one of them")
        return command(**options)

    return with_source


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The filters of every reading command; passes them as ``filters``."""

    @click.option("--since", callback=_time, help="Arrived at or after: Unix ns, ISO 8601 with zone, or an age (15m).")
    @click.option("--until", callback=_time, help="Arrived before; as --since.")
    @click.option("--run", help="Run label.")
    @click.option("--model", help="Model name.")
    @click.option("--mode", help="aggregated, sequential, overlapped, internal, prefill_on_decode or unknown.")
    @click.option("--outcome", help="Outcome of the ledger: ok, cancelled, failed_prefill, ...")
    @click.option("--prefill-worker", help="Worker that computed the prompt.")
    @click.option("--decode-worker", help="Worker that produced the answer.")
    @click.option("--limit", type=click.IntRange(min=1), help="At most this many requests.")
    @functools.wraps(command)
    def with_filters(
        *,
        since: int | None,
        until: int | None,
        run: str | None,
        model: str | None,
        mode: str | None,
        outcome: str | None,
        prefill_worker: str | None,
        decode_worker: str | None,
        limit: int | None,
        **options: Any,
    ) -> Any:
        from pdtrace.api.parameters import MODES
        from pdtrace.outcomes import OUTCOMES

        for name, value, known in (("--mode", mode, MODES), ("--outcome", outcome, tuple(OUTCOMES))):
            if value is not None and value not in known:
                raise click.UsageError(f"{name}: {value!r} is not known; one of {', '.join(known)}")
        filters = Filters(since, until, run, model, mode, outcome, prefill_worker, decode_worker, limit)
        return command(filters=filters, **options)

    return with_filters


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--db of the commands that write a store; passes ``db``."""
    return click.option(
        "--db",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="PDTRACE_DB",
        required=True,
        help="The store file; made if it does not exist.",
    )(command)


def clock_shift_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--max-clock-shift; passes ``max_clock_shift`` in ms."""
    return click.option(
        "--max-clock-shift",
        type=click.FloatRange(min=0),
        default=1_000.0,
        show_default=True,
        metavar="MS",
        help="The most that another machine's stamps may be moved to restore causality; 0 moves nothing.",
    )(command)
