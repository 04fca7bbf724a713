"""The timeline of one request: activities by lane and the charged sections below them, on one axis.

Owns lanes and packing. The lanes are front end, router, P, link, D; overlapping activities of a lane get rows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import pandas as pd

from pdtrace.stages import CONTAINER
from pdtrace_dashboard.charts.axes import group_colour, length_title, unknown_outline
from pdtrace_dashboard.format import duration, unit_for
from pdtrace_dashboard.palette import ORDER, group_of

Row = dict[str, Any]

LANES: Final = ("front end", "router", "P", "link", "D")
CHARGED: Final = "charged (sums to TTFT)"
#: More bars than this are not readable and not quick; the longest are drawn and the page says so.
MOST_BARS: Final = 400
#: Opacity of what failed, and of containers: they hold the request and are charged only where nothing else is going on.
PALE: Final = 0.35

_ROUTER_STAGES = frozenset({"route", "router_queue"})
_P_STAGES = frozenset({"prefill", "prefill_queue", "prefill_opaque", "bootstrap"})


def lane_of(activity: Row) -> str:
    """Lane of an activity: by stage, and for prompt work by the role of the worker that did it."""
    stage = activity["stage"]
    if stage == CONTAINER:
        return "front end"
    if stage in _ROUTER_STAGES:
        return "router"
    if stage == "handoff":
        return "link"
    if stage in _P_STAGES:
        return "D" if activity.get("role") == "decode" else "P"
    return "P" if stage == "recompute" and activity.get("role") in ("prefill", "aggregated") else "D"


def timeline(
    activities: Sequence[Row], sections: Sequence[Sequence[Any]], *, t0_ns: int, until_ns: int, t1_ns: int | None
) -> alt.LayerChart:
    """Bars by lane over the time since arrival, the charged strip as the last row.

    Args:
        activities: stage, start_ns, end_ns (0 while open), worker, role, attempt, rank, failed, open.
        sections: [stage, start_ns, end_ns], in order.
        t0_ns: arrival, Unix ns; the axis starts here.
        until_ns: right end of the axis, Unix ns; bars are clipped to it.
        t1_ns: first token, drawn as a line; None = there was none.
    """
    unit = unit_for(until_ns - t0_ns)
    longest = sorted(activities, key=lambda one: -(_end(one, until_ns) - one["start_ns"]))[:MOST_BARS]
    cells = _activity_cells(longest, t0_ns, until_ns, unit.ns)
    cells += [
        _cell(CHARGED, stage, start_ns, end_ns, t0_ns, until_ns, unit.ns) | {"what": f"{stage}, charged"}
        for stage, start_ns, end_ns in sections
    ]
    rows = list(dict.fromkeys(cell["lane"] for cell in cells))
    x = alt.X(
        "start:Q",
        title=length_title("since arrival", unit),
        scale=alt.Scale(domain=[0, max((until_ns - t0_ns) / unit.ns, 1e-6)], nice=False),
    )
    bars = (
        alt.Chart(pd.DataFrame(cells, columns=_COLUMNS))
        .mark_bar(clip=True, height={"band": 0.8})
        .encode(
            x=x,
            x2="end:Q",
            y=alt.Y("lane:N", title=None, sort=rows, axis=alt.Axis(labelLimit=260, ticks=False)),
            color=group_colour(),
            opacity=alt.Opacity("opacity:Q", scale=None, legend=None),
            tooltip=[
                alt.Tooltip("what:N", title="activity"),
                alt.Tooltip("text:N", title="length"),
                alt.Tooltip("after:N", title="begins after arrival by"),
                alt.Tooltip("worker:N"),
                alt.Tooltip("attempt:Q"),
                alt.Tooltip("failed:N"),
                alt.Tooltip("open:N", title="still open"),
            ],
            **unknown_outline(),
        )
        .interactive(bind_y=False)
    )
    if t1_ns is None or t1_ns > until_ns:
        return alt.layer(bars).properties(height=alt.Step(30))
    at = pd.DataFrame([{"at": (t1_ns - t0_ns) / unit.ns, "text": "first token"}])
    line = alt.Chart(at).mark_rule(strokeDash=[4, 3], color=OUTLINE_OF_LINE).encode(x="at:Q", tooltip="text:N")
    return alt.layer(bars, line).properties(height=alt.Step(30))


OUTLINE_OF_LINE: Final = "#387C43"
_COLUMNS: Final = [
    "lane", "group", "order", "start", "end", "what", "text", "after", "worker", "attempt", "failed", "open", "opacity",
]  # fmt: skip


def _activity_cells(activities: Sequence[Row], t0_ns: int, until_ns: int, unit_ns: int) -> list[Row]:
    cells = []
    for lane in LANES:
        free_ns: list[int] = []  # per row of the lane: when its last bar ends
        mine = sorted(
            (one for one in activities if lane_of(one) == lane), key=lambda one: (one["start_ns"], one["stage"])
        )
        for one in mine:
            end_ns = _end(one, until_ns)
            row = next((i for i, free in enumerate(free_ns) if free <= one["start_ns"]), len(free_ns))
            free_ns[row : row + 1] = [end_ns]
            name = lane if row == 0 else f"{lane} ({row + 1})"
            cells.append(
                _cell(name, one["stage"], one["start_ns"], end_ns, t0_ns, until_ns, unit_ns)
                | {
                    "what": one["stage"] + (f" {one['rank']}" if one.get("rank") else ""),
                    "worker": one.get("worker") or "unknown",
                    "attempt": one.get("attempt") or 0,
                    "failed": bool(one.get("failed")),
                    "open": bool(one.get("open")),
                    "opacity": PALE if one["stage"] == CONTAINER or one.get("failed") else 1.0,
                }
            )
    return sorted(cells, key=lambda cell: _row_order(cell["lane"]))


def _row_order(name: str) -> tuple[int, int]:
    lane, _, rest = name.partition(" (")
    return LANES.index(lane), int(rest.rstrip(")")) if rest else 1


def _end(activity: Row, until_ns: int) -> int:
    return int(activity["end_ns"]) or until_ns


def _cell(lane: str, stage: str, start_ns: int, end_ns: int, t0_ns: int, until_ns: int, unit_ns: int) -> Row:
    group = group_of(stage)
    return {
        "lane": lane,
        "group": group,
        "order": ORDER.index(group),
        "start": (start_ns - t0_ns) / unit_ns,
        "end": (min(end_ns, until_ns) - t0_ns) / unit_ns,
        "text": duration(end_ns - start_ns),
        "after": duration(start_ns - t0_ns),
        "worker": "",
        "attempt": 0,
        "failed": False,
        "open": False,
        "opacity": 1.0,
    }
