"""What commands print: JSON for programs, tables and times for people.

Owns form only. Does not choose what is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pdtrace.api.encode import to_json


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    sys.stdout.write(to_json(value).decode() + "\n")


def print_json_lines(values: Iterable[Any]) -> None:
    """One JSON value a line."""
    for value in values:
        print_json(value)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Columns as wide as their widest cell; the columns of ``right`` (by position) are right-aligned."""
    to_right = set(right)
    widths = [max(len(row[column]) for row in (titles, *rows)) for column in range(len(titles))]
    for row in (titles, *rows):
        cells = [
            cell.rjust(width) if column in to_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def duration(ns: float | None) -> str:
    """Three significant digits, ms below 10 s, s above; unknown is "-"."""
    if ns is None:
        return "-"
    ms = ns / 1e6
    if abs(ms) >= 10_000:
        return f"{_three(ms / 1e3)} s"
    return f"{_three(ms)} ms"


def moment(ns: int | None) -> str:
    """Unix ns as UTC with milliseconds; unknown is "-"."""
    if ns is None:
        return "-"
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d %H:%M:%S") + f".{ns % 10**9 // 10**6:03d}Z"


def text(value: Any) -> str:
    """Any value in a cell; unknown is "-"."""
    return "-" if value is None or value == "" else str(value)


def stages(by_stage: dict[str, Any] | None, most: int = 4) -> str:
    """The largest stages with their times: ``prefill 95 ms, handoff 10 ms``."""
    known = [(stage, ns) for stage, ns in (by_stage or {}).items() if ns]
    largest = sorted(known, key=lambda item: -item[1])
    shown = ", ".join(f"{stage} {duration(ns)}" for stage, ns in largest[:most])
    return shown + (", ..." if len(largest) > most else "") if shown else "-"


def _three(number: float) -> str:
    """Three significant digits without an exponent: 0.123, 12.3, 1230."""
    if number == 0:
        return "0"
    for places, below in ((2, 10), (1, 100)):
        if abs(number) < below and abs(number) >= 1:
            return f"{number:.{places}f}".rstrip("0").rstrip(".")
    return f"{number:.3g}" if abs(number) < 1 else f"{round(number)}"
