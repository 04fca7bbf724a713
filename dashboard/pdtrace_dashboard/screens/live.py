"""Live: is the system healthy now?

Owns the two-second fragment. Everything on it is redrawn in place; filters, zoom and scroll are outside or untouched.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

import altair as alt
import streamlit as st

from pdtrace.reader.contract import Filters, Row
from pdtrace_dashboard import cards, headline, sidebar, source, states, words
from pdtrace_dashboard.charts import axes, counts, series, stack
from pdtrace_dashboard.format import NS_PER_S, clock_time, duration, known, rate
from pdtrace_dashboard.view import View

REFRESH_S: Final = 2
#: Window of the live view when the filter bar names none (a run, an absolute range).
WINDOW_S: Final = 300
BUCKETS: Final = 60
#: Rates are told over this much of the newest time.
RATE_S: Final = 60
#: Charts show at least this many buckets, however short the traffic.
FEWEST_BUCKETS: Final = 12
WHERE_S: Final = 10


def show(view: View) -> None:
    """One refresh: ask, then draw."""
    window_s = view.window_s or WINDOW_S
    bucket_s = max(5, window_s // BUCKETS)
    filters = view.filters(time.time_ns())
    if not view.window_s:  # a run or an absolute range: live is about now whatever it says
        filters = replace(filters, since_ns=time.time_ns() - window_s * NS_PER_S, until_ns=None)
    answer = source.live(filters, window_s=window_s, bucket_s=bucket_s)
    totals, flight = answer["totals"], answer["in_flight"]
    buckets = since_first(answer["buckets"])
    status(answer, view, buckets[0]["bucket"] if len(buckets) < len(answer["buckets"]) else None)
    if not totals["offered"] and not flight["count"] and not totals["requests"]:
        states.nothing(view, filters)
        return
    cards.headline(headline.live(answer, bucket_s, where(headline.suspect(answer), filters)))
    # the bucket that is still running would look like a dip
    whole = [row for row in buckets if row["bucket"] + bucket_s * NS_PER_S <= answer["now_ns"]]
    numbers(answer, whole[-max(1, RATE_S // bucket_s) :], bucket_s)
    left, right = st.columns(2)
    with left:
        cards.section(f"Requests per second, {bucket_s} s buckets", f"{words.OFFERED} {words.FINISHED}")
        zoomable(series.rates(whole, bucket_s=bucket_s, zone=view.zone), key="live_rates")
    with right:
        cards.section(f"TTFT percentiles, {bucket_s} s buckets", words.PERCENTILE)
        zoomable(series.percentiles(buckets, zone=view.zone), key="live_percentiles")
    cards.section(f"Where the mean TTFT goes, {bucket_s} s buckets", f"{words.MEAN} {words.STAGES}")
    cards.legend()
    rows = [{"bucket": r["bucket"], "n": r["first_tokens"], "sections": r["sections"]} for r in buckets]
    zoomable(stack.over_time(rows, bucket_s=bucket_s, zone=view.zone), key="live_stack")
    left, right = st.columns(2)
    with left:
        cards.section(f"Outcomes of {sum(answer['outcomes'].values()):,} offered", words.OUTCOME)
        st.altair_chart(counts.outcomes(answer["outcomes"]), key="live_outcomes")
    with right:
        cards.section(f"In flight now: {flight['count']:,}, by stage", words.IN_FLIGHT)
        st.altair_chart(counts.in_flight(flight["by_stage"]), key="live_in_flight")
    oldest(answer, view)


def zoomable(chart: alt.Chart | alt.LayerChart, key: str) -> None:
    """A chart over time whose zoom outlives the refreshes. A zoom redraws this fragment, never the whole page."""
    st.altair_chart(chart, key=key, on_select="rerun", selection_mode=axes.ZOOM)


def since_first(buckets: list[Row]) -> list[Row]:
    """The buckets from the first that holds anything on, so that a service that just started fills its charts."""
    counted = ("offered", "finished", "first_tokens")
    first = next((i for i, row in enumerate(buckets) if any(row[name] for name in counted)), 0)
    return buckets[min(first, max(0, len(buckets) - FEWEST_BUCKETS)) :]


def where(group: str | None, filters: Filters) -> str:
    """The worker or link behind the group the headline is about. Steady for ``WHERE_S`` seconds, so that most refreshes ask nothing more."""
    dimension = headline.SIDE_OF_GROUP.get(group or "")
    if group is None or dimension is None or filters.since_ns is None:
        return ""
    step_ns = WHERE_S * NS_PER_S
    steady = replace(filters, since_ns=filters.since_ns // step_ns * step_ns)
    return headline.culprit(source.ttft((dimension,), steady), dimension, group)


def status(answer: Row, view: View, begins_ns: int | None) -> None:
    """Age of the newest data, and the counters by which a test knows that only this fragment ran."""
    st.session_state["live_refreshes"] = st.session_state.get("live_refreshes", 0) + 1
    newest_ns = answer["newest_ns"]
    age = duration(max(0, answer["now_ns"] - newest_ns)) if newest_ns else "unknown (nothing received yet)"
    before = f" Nothing in this window before {clock_time(begins_ns, view.zone)}." if begins_ns else ""
    st.html(
        f'<div style="font-size:.85rem;opacity:.75" data-page-runs="{st.session_state["page_runs"]}" '
        f'data-refreshes="{st.session_state["live_refreshes"]}">Age of the newest data: {age}. '
        f"Shown as of {clock_time(answer['now_ns'], view.zone)} ({view.zone}).{before}</div>"
    )


def numbers(answer: Row, newest: list[Row], bucket_s: int) -> None:
    """The row of figures under the headline; rates over the newest whole buckets, percentiles over the window."""
    totals, flight = answer["totals"], answer["in_flight"]
    columns = st.columns(6)
    newest_s = len(newest) * bucket_s
    for column, name, hover in zip(columns, ("offered", "finished"), (words.OFFERED, words.FINISHED), strict=False):
        count = sum(row[name] for row in newest)
        label = f"{name.capitalize()}, {newest_s} s (n = {count:,})"
        column.metric(label, rate(count, newest_s), help=f"{hover} Over the newest {newest_s} s in whole buckets.")
    for column, name in zip(columns[2:5], ("p50", "p95", "p99"), strict=True):
        with column:
            cards.percentile(name, totals[f"{name}_ns"], totals["requests"])
    with columns[5]:
        oldest_text = f"oldest {duration(headline.oldest_age_ns(answer))}" if flight["count"] else "none open"
        st.metric(f"In flight ({oldest_text})", f"{flight['count']:,}", help=words.IN_FLIGHT)


def oldest(answer: Row, view: View) -> None:
    """The oldest open requests: what to look at when something hangs."""
    rows = answer["in_flight"]["rows"]
    if not rows:
        return
    cards.section("Oldest in flight", words.IN_FLIGHT)
    st.dataframe(
        [
            {
                "request": row["request_id"],
                "age": duration(answer["now_ns"] - row["t0_ns"]),
                f"arrived ({view.zone})": clock_time(row["t0_ns"], view.zone),
                "model": known(row.get("model")),
                "prefill worker": known(row.get("prefill_worker")),
                "decode worker": known(row.get("decode_worker")),
            }
            for row in rows
        ],
        hide_index=True,
        key="live_oldest",
    )


chosen = sidebar.current()
title, pause = st.columns([6, 1], vertical_alignment="center")
title.caption(
    f"Refreshed every {REFRESH_S} s. Window: {chosen.range_text}."
    if chosen.window_s
    else f"Live looks back {WINDOW_S // 60} min from now whatever the time range; the other filters apply."
)
paused = pause.toggle(
    "Pause", key="live_paused", help="Stop refreshing; the other pages are never refreshed by themselves."
)


@st.fragment(run_every=None if paused else REFRESH_S)
def refreshed() -> None:
    """The part that is redrawn."""
    with states.service_or_notice():
        show(sidebar.current())


refreshed()
