"""Numbers and times as people read them: three significant digits, ms below 10 s and s above, one time zone.

Owns text. Does not know pages or charts. Unknown (None) is always the word "unknown", never 0.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

UNKNOWN: Final = "unknown"
NS_PER_S: Final = 1_000_000_000
#: Below this many requests a percentile is greyed.
FEW: Final = 20


class Unit(NamedTuple):
    """A unit of time for one axis or column."""

    name: str  #: "ms" or "s"
    ns: int  #: nanoseconds in it


MS = Unit("ms", 1_000_000)
SECOND = Unit("s", NS_PER_S)


def unit_for(largest_ns: float | None) -> Unit:
    """The unit of an axis whose largest value is ``largest_ns``: ms below 10 s, s from there on."""
    return SECOND if largest_ns is not None and abs(largest_ns) >= 10 * NS_PER_S else MS


def three_digits(value: float) -> str:
    """At most three significant digits, thousands separated: 4123 -> "4,120", 0.01234 -> "0.0123"."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    decimals = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    text = f"{rounded:,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(length_ns: float | None) -> str:
    """A length of time: "412 ms", "12.3 s", "unknown"."""
    if length_ns is None:
        return UNKNOWN
    unit = unit_for(length_ns)
    return f"{three_digits(length_ns / unit.ns)} {unit.name}"


def exact(length_ns: int | None) -> str:
    """A length to the nanosecond, for the proof only: "398,000,000 ns"."""
    return UNKNOWN if length_ns is None else f"{length_ns:,} ns"


def share(part: float, whole: float) -> str:
    """A share in per cent: "71 %"; unknown where there is no whole."""
    return UNKNOWN if not whole else f"{three_digits(100 * part / whole)} %"


def rate(count: float, seconds: float) -> str:
    """Requests per second: "12.5 /s"."""
    return UNKNOWN if seconds <= 0 else f"{three_digits(count / seconds)} /s"


def size(count_bytes: int | None) -> str:
    """Bytes in decimal units: "1.5 GB"."""
    if count_bytes is None:
        return UNKNOWN
    for name, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count_bytes >= scale:
            return f"{three_digits(count_bytes / scale)} {name}"
    return f"{count_bytes} bytes"


def short(name: str) -> str:
    """A worker's or link's name for a sentence: long ids keep their two ends, the whole is in tables and hovers."""
    parts = name.split(" > ")
    return " > ".join(f"{part[:8]}…{part[-4:]}" if len(part) > 20 else part for part in parts)


def known(value: object) -> str:
    """Any value as text; None and "" as unknown."""
    return UNKNOWN if value is None or value == "" else str(value)


def zoned(time_ns: int, zone: str) -> datetime:
    """A Unix time in ns as an aware datetime of the zone (microseconds; the rest is cut)."""
    whole = datetime.fromtimestamp(time_ns // NS_PER_S, UTC) + timedelta(microseconds=time_ns % NS_PER_S // 1000)
    return whole.astimezone(ZoneInfo(zone))


def clock_time(time_ns: int | None, zone: str) -> str:
    """Date and time with milliseconds and UTC offset; sorts as text within one offset."""
    if time_ns is None:
        return UNKNOWN
    when = zoned(time_ns, zone)
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}{offset(when)}"


def offset(when: datetime) -> str:
    """UTC offset of an aware time: "Z" for UTC, else "+02:00"."""
    away = when.utcoffset() or timedelta()
    if not away:
        return "Z"
    minutes = int(away.total_seconds() // 60)
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


def few(n: int | None) -> bool:
    """True where a percentile over ``n`` requests is greyed."""
    return n is None or n < FEW
