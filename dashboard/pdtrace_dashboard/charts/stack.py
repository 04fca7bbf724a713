"""Stacked mean decompositions: over time, by group, and the p99 band beside the mean.

Owns the stack. Rows hold ``sections`` (stage to mean ns) as the reader gives them; stages of a group are added here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from pdtrace_dashboard.charts.axes import HEIGHT, group_colour, length_title, time_x, unknown_outline, zoom
from pdtrace_dashboard.format import NS_PER_S, Unit, clock_time, duration, unit_for
from pdtrace_dashboard.palette import ORDER, by_group

Row = dict[str, Any]


def over_time(rows: Sequence[Row], *, bucket_s: int, zone: str, what: str = "mean TTFT") -> alt.Chart:
    """Stacked bars, one a bucket. Bottom and top are added here: Vega does not stack bars that have a width in time.

    Args:
        rows: bucket (Unix ns of its start), n, sections (stage to mean ns); a bucket without a TTFT has no bar.
        bucket_s: width of a bucket in seconds.
        zone: the view's time zone.
        what: what the height of a bar is, for the axis.
    """
    unit = unit_for(max((sum((row["sections"] or {}).values()) for row in rows), default=0))
    cells = []
    for row in rows:
        top = 0.0
        for group, length_ns in by_group(row["sections"] or {}).items():
            cell = _cell(group, length_ns, unit)
            cells.append(
                {
                    "start": row["bucket"] // 1_000_000,
                    "end": row["bucket"] // 1_000_000 + bucket_s * 1000,
                    "bottom": top,
                    "top": top + cell["length"],
                    "when": clock_time(row["bucket"], zone),
                    "n": row["n"],
                    **cell,
                }
            )
            top += cell["length"]
        if not row["sections"]:  # no bar, but the bucket keeps its place, so that charts of one page line up
            empty = {
                "bottom": 0.0,
                "top": 0.0,
                "when": clock_time(row["bucket"], zone),
                "n": row["n"],
                "text": "no TTFT",
            }
            cells.append(
                {"start": row["bucket"] // 1_000_000, "end": row["bucket"] // 1_000_000 + bucket_s * 1000} | empty
            )
    first_ns = min((row["bucket"] for row in rows), default=0)
    last_ns = max((row["bucket"] for row in rows), default=0) + bucket_s * NS_PER_S
    columns = ["start", "end", "bottom", "top", "when", "n", "group", "order", "length", "text"]
    return (
        alt.Chart(pd.DataFrame(cells, columns=columns), height=HEIGHT)
        .mark_rect(strokeWidth=1)
        .encode(
            x=time_x("start", zone, first_ns, last_ns),
            x2="end:T",
            y=alt.Y("bottom:Q", title=length_title(what, unit), scale=alt.Scale(zero=True)),
            y2="top:Q",
            color=group_colour(),
            tooltip=_tooltip("when", "bucket from"),
            **unknown_outline(),
        )
        .add_params(zoom())
    )


def by_label(rows: Sequence[Row], *, what: str = "mean TTFT") -> alt.Chart:
    """Horizontal stacked bars, one a label, in the order given.

    Args:
        rows: label (text, made unique by the caller), n, sections (stage to mean ns).
        what: what the length of a bar is, for the axis.
    """
    unit = unit_for(max((sum(row["sections"].values()) for row in rows), default=0))
    cells = [
        {"label": f"{row['label']} (n = {row['n']:,})", **_cell(group, length_ns, unit), "n": row["n"]}
        for row in rows
        for group, length_ns in by_group(row["sections"]).items()
    ]
    labels = [f"{row['label']} (n = {row['n']:,})" for row in rows]
    return (
        alt.Chart(pd.DataFrame(cells, columns=["label", "group", "order", "length", "text", "n"]))
        .mark_bar()
        .encode(
            x=alt.X("length:Q", title=length_title(what, unit), stack="zero"),
            y=alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=320)),
            color=group_colour(),
            order=alt.Order("order:Q"),
            tooltip=_tooltip("label", "of"),
            **unknown_outline(),
        )
        .properties(height=alt.Step(34))
    )


def exposed_and_hidden(rows: Sequence[Row], *, stage: str = "handoff") -> alt.Chart:
    """Two bars a label: what of ``stage`` the user waited for, and what other work hid. Never stacked: they do not add.

    Args:
        rows: label, n, exposed_ns and hidden_ns (means; None = unknown, no bar).
        stage: the stage, for the axis.
    """
    values = [row[key] for row in rows for key in ("exposed_ns", "hidden_ns") if row[key] is not None]
    unit = unit_for(max(values, default=0))
    cells = [
        {
            "label": f"{row['label']} (n = {row['n']:,})",
            "kind": kind,
            "length": row[f"{kind}_ns"] / unit.ns,
            "text": duration(row[f"{kind}_ns"]),
        }
        for row in rows
        for kind in ("exposed", "hidden")
        if row[f"{kind}_ns"] is not None
    ]
    kinds = ["exposed", "hidden"]
    return (
        alt.Chart(pd.DataFrame(cells, columns=["label", "kind", "length", "text"]))
        .mark_bar(stroke="#B07AA1", strokeWidth=1)
        .encode(
            x=alt.X("length:Q", title=length_title(f"mean {stage} per request", unit)),
            y=alt.Y("label:N", title=None, sort=None, axis=alt.Axis(labelLimit=320)),
            yOffset=alt.YOffset("kind:N", sort=kinds),
            color=alt.Color(
                "kind:N",
                scale=alt.Scale(domain=kinds, range=["#B07AA1", "transparent"]),
                legend=alt.Legend(title=None, orient="bottom", symbolStrokeColor="#B07AA1", symbolType="square"),
            ),
            tooltip=[alt.Tooltip("label:N"), alt.Tooltip("kind:N"), alt.Tooltip("text:N", title="mean")],
        )
        .properties(height=alt.Step(18))
    )


def _cell(group: str, length_ns: float, unit: Unit) -> Row:
    return {"group": group, "order": ORDER.index(group), "length": length_ns / unit.ns, "text": duration(length_ns)}


def _tooltip(field: str, title: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip(f"{field}:N", title=title),
        alt.Tooltip("group:N", title="stage"),
        alt.Tooltip("text:N", title="mean"),
        alt.Tooltip("n:Q", title="requests (n)", format=","),
    ]
