"""Health: can I believe this?

Owns the order of Reader.doctor's answers: doubts and what each engine hides come first, because one can act on them.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from pdtrace_dashboard import cards, headline, remedies, sidebar, source, states, words
from pdtrace_dashboard.format import clock_time, duration, known, share, size
from pdtrace_dashboard.view import View

Row = dict[str, Any]

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
    """Ingest, doubts, dialects, clocks, store."""
    answer = source.doctor()
    found = answer["store"].get("requests") or 0
    cards.headline(headline.health(answer))
    ingest(answer["ingest"])
    doubts(answer["warnings"], found)
    dialects(answer, found)
    clocks(answer["clocks"])
    store(answer["store"], view)


def ingest(counts: Row) -> None:
    """Counters, then each rejection with its reason."""
    cards.section("Ingest", "Since the store was made.")
    for column, (name, hover) in zip(st.columns(len(COUNTERS)), COUNTERS.items(), strict=True):
        value = counts.get(name)
        column.metric(name, "unknown" if value is None else f"{value:,}", help=hover)
    if counts["rejections"]:
        st.dataframe(counts["rejections"], hide_index=True, key="health_rejections")


def doubts(rows: list[Row], found: int) -> None:
    """Warnings over all requests, the commonest first, each with what would remove it."""
    cards.section("Doubts, commonest first, and what removes them", "Adjustments, gaps and doubts over all requests.")
    if not rows:
        st.markdown("No request carries a warning.")
        return
    told = [
        {
            "warning": f"`{row['code']}`",
            "requests": f"{row['requests']:,} ({share(row['requests'], found)})",
            "for example": cards.plain(row["example"]),
            "what to do": remedies.OF_WARNING.get(row["code"], "nothing: this is what happened"),
        }
        for row in sorted(rows, key=lambda row: -row["requests"])
    ]
    st.table(told, border="horizontal", hide_index=True)  # wraps long sentences, which a data frame cuts off


def dialects(answer: Row, found: int) -> None:
    """A card a dialect, the one behind most requests first: what it cannot tell, and what to switch on."""
    rows = sorted(answer["dialects"], key=lambda row: -row["requests"])
    cards.section("What the engines do not tell, by dialect, and what to switch on", words.BLIND)
    if not rows:
        st.markdown("No dialect was recognised yet: nothing arrived, or nothing about inference.")
    for at in range(0, len(rows), 2):
        for column, row in zip(st.columns(2), rows[at : at + 2], strict=False):
            with column.container(border=True, height="stretch"):
                st.markdown(dialect(row, found))
    for text in others(answer):
        st.markdown(f"- {text}")


def dialect(row: Row, found: int) -> str:
    """One dialect as Markdown: what came of it, its blind spots, and the switches that show most."""
    lines = [
        f"**{row['dialect']}**: {row['requests']:,} requests ({share(row['requests'], found)}), {row['spans']:,} spans",
        "",
    ]
    lines += [f"- {spot[:1].upper()}{spot[1:].rstrip('.')}." for spot in row["blind_spots"]]
    if not row["blind_spots"]:
        lines.append("Nothing is known to be hidden.")
    if advice := remedies.OF_DIALECT.get(row["dialect"]):
        lines += ["", f"To see most: {advice}."]
    return "\n".join(lines)


def others(answer: Row) -> list[str]:
    """What the service calls missing beyond blind spots and warnings, which have places of their own."""
    told = {f"{row['dialect']}: {spot}" for row in answer["dialects"] for spot in row["blind_spots"]}
    codes = tuple(f"{row['code']} on " for row in answer["warnings"])
    return [text for text in answer["missing"] if text not in told and not text.startswith(codes or ("\0",))]


def clocks(rows: list[Row]) -> None:
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


def store(row: Row, view: View) -> None:
    """Where the data are and what they cover."""
    cards.section("Store", "Raw telemetry as it came, and tables derived from it that can be rebuilt.")
    st.markdown(
        f"`{known(row.get('path'))}`, {size(row.get('bytes'))}, {known(row.get('requests'))} requests, "
        f"from {clock_time(row.get('first_ns'), view.zone)} to {clock_time(row.get('last_ns'), view.zone)} ({view.zone})"
    )


def table(key: str, rows: list[Row], empty: str) -> None:
    """A table, or the sentence that says why there is none."""
    if rows:
        st.dataframe(rows, hide_index=True, key=key)
    else:
        st.markdown(empty)


with states.service_or_notice():
    show(sidebar.current())
