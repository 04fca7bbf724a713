"""Axes every chart shares: a time axis that prints its zone, a length axis that prints its unit.

Owns scales and titles. Charts own marks.
"""

from __future__ import annotations

import altair as alt

from pdtrace_dashboard import timezone
from pdtrace_dashboard.format import Unit
from pdtrace_dashboard.palette import COLOUR_OF_GROUP, ORDER, OUTLINE, UNKNOWN_GROUPS

#: Height of a chart in pixels.
HEIGHT = 260
#: Streamlit 1.67 resets a zoom whenever new data come, except of a selection it is told to report (``on_select``).
ZOOM = "zoom"


def time_x(field: str, zone: str, first_ns: int, last_ns: int) -> alt.X:
    """A temporal x axis in ``zone``; ``field`` holds Unix ms. The spec stays the same while only data move."""
    return alt.X(
        f"{field}:T",
        scale=alt.Scale(type="utc"),
        axis=alt.Axis(
            title=timezone.title(zone, first_ns, last_ns),
            labelExpr=timezone.label_expression(zone, first_ns, last_ns),
            labelOverlap=True,
            tickCount=6,
            grid=False,
        ),
    )


def length_title(what: str, unit: Unit) -> str:
    """Axis title of a length of time: "mean TTFT (ms)"."""
    return f"{what} ({unit.name})"


def zoom() -> alt.Parameter:
    """Zoom and pan in time. Named, so that a page that refreshes can keep it: see ``ZOOM``."""
    return alt.selection_interval(name=ZOOM, bind="scales", encodings=["x"])


def group_colour() -> alt.Color:
    """Colour by headline group. No legend in the chart: the page shows one line of it, in pipeline order, for all."""
    return alt.Color(
        "group:N",
        scale=alt.Scale(domain=list(ORDER), range=[COLOUR_OF_GROUP[group] for group in ORDER]),
        sort=list(ORDER),
        legend=None,
    )


def unknown_outline() -> dict[str, object]:
    """Encodings that outline what is not known, dashed: Vega has no hatching."""
    test = alt.FieldOneOfPredicate(field="group", oneOf=sorted(UNKNOWN_GROUPS))
    return {
        "stroke": alt.condition(test, alt.value(OUTLINE), alt.value("transparent")),
        "strokeDash": alt.condition(test, alt.value([3, 2]), alt.value([1, 0])),
    }
