"""Health: can I believe this?

Owns the order of Reader.doctor's answers. What is missing comes first, because it is what one can act on.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from pdtrace_dashboard import cards, headline, sidebar, source, states, words
from pdtrace_dashboard.format import clock_time, duration, known, size
from pdtrace_dashboard.view import View

COUNTERS = {
    "spans": "Spans kept, as they came.",
    "records": "Facts about a request that did not come as a span (request-trace lines, perf metrics).",
    "logs": "Log records kept.",
    "points": "Metric points kept.",
    "duplicates": "Spans and records that were there already with the same content; dropped, nothing counts twice.",
    "conflicts": "Spans that came again under the same id with other content; the later end wins.",
    "rejected": "What came in and was not kept; the reasons are below.",
}


def show(view: View) -> None:
    """Missing, dialects, ingest, clocks, warnings, store."""
    answer = source.doctor()
    cards.headline(headline.health(answer))
    cards.section("What is missing, and how to get it", "What no engine sent, and the flag that would make it.")
    for text in answer["missing"]:
        st.markdown(f"- {text}")
    if not answer["missing"]:
        st.markdown("Nothing that pdtrace knows to ask for.")
    cards.section("Dialects seen", words.BLIND)
    table(
        "health_dialects",
        [
            {
                "dialect": row["dialect"],
                "requests": row["requests"],
                "spans": row["spans"],
                "blind to": "; ".join(row["blind_spots"])
                if isinstance(row["blind_spots"], list)
                else row["blind_spots"],
            }
            for row in answer["dialects"]
        ],
        "No dialect was recognised yet: nothing arrived, or nothing about inference.",
    )
    ingest(answer["ingest"])
    clocks(answer["clocks"])
    cards.section("Warnings on requests", "Adjustments, gaps and doubts, counted over all requests.")
    table("health_warnings", answer["warnings"], "No request carries a warning.")
    store(answer["store"], view)


def ingest(counts: dict[str, Any]) -> None:
    """Counters, then each rejection with its reason."""
    cards.section("Ingest", "Since the store was made.")
    for column, (name, hover) in zip(st.columns(len(COUNTERS)), COUNTERS.items(), strict=True):
        value = counts.get(name)
        column.metric(name, "unknown" if value is None else f"{value:,}", help=hover)
    table("health_rejections", counts["rejections"], "Nothing was rejected.")


def clocks(rows: list[dict[str, Any]]) -> None:
    """Offsets between clocks over all requests."""
    cards.section("Clocks", words.CLOCKS)
    lengths = {
        "low_ns": "offset at least", "high_ns": "at most", "applied_min_ns": "least applied", "applied_max_ns": "most applied",
    }  # fmt: skip
    table(
        "health_clocks",
        [
            {"clock": row["clock"], "against": row["reference"], "requests": row["requests"]}
            | {title: duration(row.get(key)) for key, title in lengths.items()}
            for row in rows
        ],
        "One clock, or no causal pair between two: no offset is known.",
    )


def store(row: dict[str, Any], view: View) -> None:
    """Where the data are and what they cover."""
    cards.section("Store", "Raw telemetry as it came, and tables derived from it that can be rebuilt.")
    st.markdown(
        f"`{known(row.get('path'))}`, {size(row.get('bytes'))}, {known(row.get('requests'))} requests, "
        f"from {clock_time(row.get('first_ns'), view.zone)} to {clock_time(row.get('last_ns'), view.zone)} ({view.zone})"
    )


def table(key: str, rows: list[dict[str, Any]], empty: str) -> None:
    """A table, or the sentence that says why there is none."""
    if rows:
        st.dataframe(rows, hide_index=True, key=key)
    else:
        st.markdown(empty)


with states.service_or_notice():
    show(sidebar.current())
