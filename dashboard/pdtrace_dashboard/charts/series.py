"""Lines over time on the Live page: request rates and TTFT percentiles.

Owns lines. A bucket without a value breaks the line; it is never drawn as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import pandas as pd

from pdtrace_dashboard.charts.axes import HEIGHT, length_title, time_x, zoom
from pdtrace_dashboard.format import FEW, NS_PER_S, clock_time, duration, three_digits, unit_for
from pdtrace_dashboard.palette import COLOUR_OF_PERCENTILE, COLOUR_OF_RATE

Row = dict[str, Any]
_COLUMNS = ["time", "series", "value", "text", "when", "n", "few"]


def rates(buckets: Sequence[Row], *, bucket_s: int, zone: str) -> alt.LayerChart:
    """Requests per second, offered and finished.

    Args:
        buckets: bucket (Unix ns), offered, finished (counts); whole buckets only, the running one would look like a dip.
        bucket_s: width of a bucket in seconds.
        zone: the view's time zone.
    """
    cells = [
        {
            "time": row["bucket"] // 1_000_000,
            "series": name,
            "value": row[name] / bucket_s,
            "text": f"{three_digits(row[name] / bucket_s)} /s",
            "when": clock_time(row["bucket"], zone),
            "n": row[name],
            "few": False,
        }
        for row in buckets
        for name in COLOUR_OF_RATE
    ]
    return _lines(cells, buckets, zone, "requests per second", COLOUR_OF_RATE)


def percentiles(buckets: Sequence[Row], *, zone: str) -> alt.LayerChart:
    """TTFT p50, p95, p99 of each bucket; points of buckets below 20 requests are pale.

    Args:
        buckets: bucket (Unix ns), first_tokens (n), p50_ns, p95_ns, p99_ns (None = no TTFT in it).
        zone: the view's time zone.
    """
    unit = unit_for(max((row["p99_ns"] or 0 for row in buckets), default=0))
    cells = [
        {
            "time": row["bucket"] // 1_000_000,
            "series": name,
            "value": None if row[f"{name}_ns"] is None else row[f"{name}_ns"] / unit.ns,
            "text": duration(row[f"{name}_ns"]),
            "when": clock_time(row["bucket"], zone),
            "n": row["first_tokens"],
            "few": row["first_tokens"] < FEW,
        }
        for row in buckets
        for name in COLOUR_OF_PERCENTILE
    ]
    return _lines(cells, buckets, zone, length_title("TTFT", unit), COLOUR_OF_PERCENTILE)


def _lines(
    cells: list[Row], buckets: Sequence[Row], zone: str, title: str, colours: Mapping[str, str]
) -> alt.LayerChart:
    first_ns = min((row["bucket"] for row in buckets), default=0)
    last_ns = max((row["bucket"] for row in buckets), default=NS_PER_S)
    base = alt.Chart(pd.DataFrame(cells, columns=_COLUMNS), height=HEIGHT).encode(
        x=time_x("time", zone, first_ns, last_ns),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=True)),
        color=alt.Color(
            "series:N",
            scale=alt.Scale(domain=list(colours), range=list(colours.values())),
            legend=alt.Legend(title=None, orient="bottom"),
        ),
    )
    points = base.mark_point(filled=True, size=28, invalid="filter").encode(
        opacity=alt.condition("datum.few", alt.value(0.3), alt.value(1)),
        tooltip=[
            alt.Tooltip("when:N", title="bucket from"),
            alt.Tooltip("series:N"),
            alt.Tooltip("text:N", title="value"),
            alt.Tooltip("n:Q", title="requests (n)", format=","),
        ],
    )
    return alt.layer(base.mark_line(invalid="break-paths-show-domains"), points.add_params(zoom()))
