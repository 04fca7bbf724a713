"""One time zone for a view: typed local times to Unix ns, and zone-true axes for Vega.

Owns the conversion between wall clock and Unix time. Does not format durations or know pages.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pdtrace_dashboard.format import NS_PER_S, offset, zoned


class BadTime(ValueError):
    """A typed time that names no instant, or two; the message says what would be right."""


def is_zone(name: str) -> bool:
    """True if the time zone database knows ``name``."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def parse(text: str, zone: str) -> int:
    """A typed time to Unix ns: "2026-03-29 01:30" in ``zone``, or with an offset of its own ("...Z", "...+02:00").

    Raises:
        BadTime: not a time; skipped by a clock change; or named twice by one (an offset must then be typed).
    """
    try:
        typed = datetime.fromisoformat(text.strip())
    except ValueError:
        raise BadTime(f"{text!r} is not a time; type it as 2026-03-29 01:30 or 2026-03-29T01:30:00Z") from None
    if typed.tzinfo is None:
        first, second = (typed.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
        if first.utcoffset() != second.utcoffset():
            if first.astimezone(UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != typed:
                raise BadTime(f"{text} does not exist in {zone}: the clocks go forward over it")
            raise BadTime(
                f"{text} happens twice in {zone}: add the offset, {text}{offset(first)} or {text}{offset(second)}"
            )
        typed = first
    since_epoch = typed.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_epoch // timedelta(microseconds=1)) * 1000


def stamp(time_ns: int) -> str:
    """A Unix time in ns as the URL carries it: UTC, whole microseconds, "Z"."""
    text = zoned(time_ns, "UTC").isoformat()
    return text.replace("+00:00", "Z")


def transitions(zone: str, first_ns: int, last_ns: int) -> list[tuple[int, int]]:
    """(from Unix s, offset s) pieces that cover first..last; one piece where the clocks do not change."""
    first_s, last_s = first_ns // NS_PER_S, last_ns // NS_PER_S
    pieces = [(first_s, _offset_s(zone, first_s))]
    step_s = 3600 * 6
    here_s = first_s
    while here_s < last_s:
        next_s = min(here_s + step_s, last_s)
        if _offset_s(zone, next_s) != _offset_s(zone, here_s):
            low_s, high_s = here_s, next_s
            while high_s - low_s > 1:
                middle_s = (low_s + high_s) // 2
                low_s, high_s = (low_s, middle_s) if _offset_s(zone, middle_s) != pieces[-1][1] else (middle_s, high_s)
            pieces.append((high_s, _offset_s(zone, high_s)))
        here_s = next_s
    return pieces


def label_expression(zone: str, first_ns: int, last_ns: int) -> str:
    """Vega expression that prints an axis value (Unix ms on a UTC scale) as wall clock of ``zone``.

    Vega can print UTC or the browser's zone only; adding the zone's own offset, piece by piece across a clock change,
    keeps ticks true for every viewer and under zoom.
    """
    pieces = transitions(zone, first_ns, last_ns)
    shift = str(pieces[0][1] * 1000)
    for from_s, offset_s in pieces[1:]:
        shift = f"(toNumber(datum.value) >= {from_s * 1000} ? {offset_s * 1000} : {shift})"
    wall = f"toNumber(datum.value) + {shift}"  # an axis value is a Date, and Date + number would be text
    clock = f"utcFormat({wall}, '%H:%M:%S')"
    return f"{clock} == '00:00:00' ? utcFormat({wall}, '%d %b') : {clock}"


def title(zone: str, first_ns: int, last_ns: int) -> str:
    """Axis title that prints the zone and its offset or offsets: "time, Europe/Berlin (UTC+01:00, then +02:00)"."""
    if zone == "UTC":
        return "time, UTC"
    offsets = [offset(zoned(from_s * NS_PER_S, zone)) for from_s, _ in transitions(zone, first_ns, last_ns)]
    return f"time, {zone} (UTC{', then '.join('+00:00' if text == 'Z' else text for text in offsets)})"


def _offset_s(zone: str, time_s: int) -> int:
    away = zoned(time_s * NS_PER_S, zone).utcoffset()
    return int(away.total_seconds()) if away else 0
