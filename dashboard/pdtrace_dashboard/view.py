"""The filter bar as plain data: what is selected, how the URL carries it, what the reader is asked.

Owns the URL's vocabulary. Does not draw widgets (sidebar) or ask the reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pdtrace.reader.contract import Filters
from pdtrace_dashboard.format import NS_PER_S
from pdtrace_dashboard.timezone import BadTime, is_zone, parse, stamp

#: URL value -> (label, seconds back from now; None = not relative)
RANGES: Final[dict[str, tuple[str, int | None]]] = {
    "5m": ("last 5 min", 300),
    "15m": ("last 15 min", 900),
    "60m": ("last 60 min", 3600),
    "run": ("a run", None),
    "absolute": ("from ... to", None),
}
DEFAULT_RANGE: Final = "15m"

#: URL key -> field of View and of Filters
CHOICES: Final[dict[str, str]] = {
    "model": "model",
    "run": "run",
    "mode": "mode",
    "prefill": "prefill_worker",
    "decode": "decode_worker",
    "outcome": "outcome",
}
KEYS: Final[tuple[str, ...]] = ("range", "from", "to", *CHOICES, "zone")


@dataclass(frozen=True, slots=True)
class View:
    """One state of the filter bar. None = any."""

    range: str = DEFAULT_RANGE
    since_ns: int | None = None  #: only with range "absolute"
    until_ns: int | None = None
    model: str | None = None
    run: str | None = None
    mode: str | None = None
    prefill_worker: str | None = None
    decode_worker: str | None = None
    outcome: str | None = None
    zone: str = "UTC"

    @property
    def window_s(self) -> int | None:
        """Seconds back from now; None for a run or an absolute range."""
        return RANGES[self.range][1]

    @property
    def range_text(self) -> str:
        """The time range in words, for headlines and empty states."""
        if self.range == "absolute":
            ends = [stamp(at) if at is not None else "any time" for at in (self.since_ns, self.until_ns)]
            return f"from {ends[0]} to {ends[1]}"
        if self.range == "run":
            return f"run {self.run}" if self.run else "all runs, all time"
        return RANGES[self.range][0]

    def filters(self, now_ns: int) -> Filters:
        """What the reader is asked. Relative ranges start on a whole second so that short-lived caches can hit."""
        since_ns, until_ns = self.since_ns, self.until_ns
        if self.range != "absolute":
            since_ns = until_ns = None
        if self.window_s is not None:
            since_ns = (now_ns // NS_PER_S - self.window_s) * NS_PER_S
        chosen = {field: getattr(self, field) for field in CHOICES.values()}
        return Filters(since_ns=since_ns, until_ns=until_ns, **chosen)

    def active(self) -> dict[str, str]:
        """Filters in force besides the time range: field -> value."""
        return {field: value for field in CHOICES.values() if (value := getattr(self, field)) is not None}


def to_url(view: View) -> dict[str, str]:
    """The query parameters of a view; what is at its default is left out."""
    url = {"range": view.range}
    if view.range == "absolute":
        url |= {key: stamp(at) for key, at in (("from", view.since_ns), ("to", view.until_ns)) if at is not None}
    url |= {key: value for key, field in CHOICES.items() if (value := getattr(view, field)) is not None}
    if view.zone != "UTC":
        url["zone"] = view.zone
    return url


def from_url(url: Mapping[str, str]) -> tuple[View, list[str]]:
    """A view from query parameters, and a sentence for each one that was not understood (and therefore not used)."""
    problems: list[str] = []
    view = View(**{field: url[key] for key, field in CHOICES.items() if url.get(key)})
    zone = url.get("zone", "UTC")
    if is_zone(zone):
        view = replace(view, zone=zone)
    else:
        problems.append(f"zone={zone} in the URL is no time zone; a name like Europe/Berlin is; UTC is used.")
    wanted = url.get("range", DEFAULT_RANGE)
    if wanted not in RANGES:
        problems.append(f"range={wanted} in the URL is none of {', '.join(RANGES)}; {DEFAULT_RANGE} is used.")
        wanted = DEFAULT_RANGE
    view = replace(view, range=wanted)
    for key, field in (("from", "since_ns"), ("to", "until_ns")):
        if url.get(key) and wanted == "absolute":
            try:
                view = replace(view, **{field: parse(url[key], view.zone)})
            except BadTime as error:
                problems.append(f"{key} in the URL: {error}.")
    return view, problems
