"""Counts by name: outcomes, and requests in flight by the stage they are in.

Owns horizontal count bars with the number written on them.
"""

from __future__ import annotations

from collections.abc import Mapping

import altair as alt
import pandas as pd

from pdtrace_dashboard.palette import COLOUR_OF_GROUP, ORDER, OUTLINE, UNKNOWN_GROUPS, group_of
from pdtrace_dashboard.words import OUTCOME_IN_WORDS, STREAMING

#: Good is calm, a failure is loud, what is nobody's fault or not over is grey.
_COLOUR_OF_OUTCOME = {"ok": "#387C43", "ok_fallback": "#8FBC8F", "in_flight": "#A0CBE8"}
_GREY_OUTCOMES = frozenset({"cancelled", "invalid", "unknown"})


def outcomes(counts: Mapping[str, int]) -> alt.LayerChart:
    """One bar an outcome that occurred, in the ledger's order."""
    rows = [
        {
            "name": OUTCOME_IN_WORDS.get(name, name),
            "count": count,
            "colour": _COLOUR_OF_OUTCOME.get(name, "#A9A9A9" if name in _GREY_OUTCOMES else "#E0304F"),
        }
        for name, count in counts.items()
        if count
    ]
    return _bars(rows, "requests")


def in_flight(by_stage: Mapping[str, int]) -> alt.LayerChart:
    """One bar a headline group that holds open requests now, in pipeline order, then those past their first token."""
    waiting = dict(by_stage)
    streaming = waiting.pop("after_first_token", 0)
    sums: dict[str, int] = {}
    for stage, count in waiting.items():
        sums[group_of(stage)] = sums.get(group_of(stage), 0) + count
    rows: list[dict[str, object]] = [
        {"name": group, "count": sums[group], "colour": COLOUR_OF_GROUP[group]} for group in ORDER if sums.get(group)
    ]
    if streaming:
        rows.append({"name": STREAMING, "count": streaming, "colour": _COLOUR_OF_OUTCOME["in_flight"]})
    return _bars(rows, "requests in flight now")


def _bars(rows: list[dict[str, object]], title: str) -> alt.LayerChart:
    base = alt.Chart(pd.DataFrame(rows, columns=["name", "count", "colour"])).encode(
        x=alt.X("count:Q", title=title, axis=alt.Axis(tickMinStep=1, format=",d")),
        y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=200)),
        tooltip=[alt.Tooltip("name:N"), alt.Tooltip("count:Q", format=",")],
    )
    unknown = alt.FieldOneOfPredicate(field="name", oneOf=sorted(UNKNOWN_GROUPS))  # outlined, as in every stack
    bars = base.mark_bar(strokeDash=[3, 2]).encode(
        color=alt.Color("colour:N", scale=None),
        stroke=alt.condition(unknown, alt.value(OUTLINE), alt.value("transparent")),
    )
    numbers = base.mark_text(align="left", dx=4, color="gray").encode(text=alt.Text("count:Q", format=","))
    return alt.layer(bars, numbers).properties(height=alt.Step(24))
