"""TTFT: where does the time go, and for whom?

Owns the controls of this page. Numbers come from Reader.ttft; nothing is averaged again here.
"""

from __future__ import annotations

import time
from typing import Any

import streamlit as st

from pdtrace.reader.contract import Filters
from pdtrace_dashboard import cards, headline, sidebar, source, states, words
from pdtrace_dashboard.charts import stack
from pdtrace_dashboard.format import NS_PER_S, duration, few, known
from pdtrace_dashboard.view import View

DIMENSIONS = {
    "prefill_worker": "prefill worker",
    "decode_worker": "decode worker",
    "link": "link (P to D)",
    "model": "model",
    "mode": "mode",
    "run": "run",
    "outcome": "outcome",
}
#: More groups than this are not readable as bars; the rest is in the table.
MOST_BARS = 24


def show(view: View) -> None:
    """Headline, the mean beside its p99 band, then over time, then for whom."""
    filters = view.filters(time.time_ns())
    answer = source.ttft((), filters)
    if not answer or not answer[0]["requests"]:
        states.nothing(view, filters) if not source.facets(filters).get("requests") else no_first_token(view)
        return
    total = answer[0]
    group = headline.largest(total["sections"])
    side = headline.SIDE_OF_GROUP.get(group or "")
    where = headline.culprit(source.ttft((side,), filters), side, group) if group and side else ""
    cards.headline(headline.ttft(total, where))
    columns = st.columns(5)
    with columns[0]:
        st.metric(f"TTFT mean (n = {total['requests']:,})", duration(total["mean_ns"]), help=words.TTFT)
    for column, name in zip(columns[1:], ("p50", "p90", "p95", "p99"), strict=True):
        with column:
            cards.percentile(name, total[f"{name}_ns"], total["requests"])
    cards.section("All requests beside the slowest 1 %", f"{words.P99_BAND} {words.STAGES}")
    band = {"label": "at or above the p99", "n": total["p99_requests"], "sections": total["p99_sections"] or {}}
    everyone = {"label": "all requests, mean", "n": total["requests"], "sections": total["sections"]}
    cards.legend()
    st.altair_chart(stack.by_label([everyone, band], what="mean TTFT of the cohort"), key="ttft_band")
    over_time(view, filters)
    for_whom(filters)


def no_first_token(view: View) -> None:
    """Requests there are, but none of them has a TTFT."""
    cards.headline(f"No request {view.range_text} has a first token yet, so there is no TTFT to decompose.")
    st.markdown("See Requests for their outcomes, and Health for what the engines do not send.")


def over_time(view: View, filters: Filters) -> None:
    """The stack per bucket; about sixty buckets whatever the range."""
    span_s = view.window_s
    if span_s is None:
        known_range = source.facets(filters)
        first_ns, last_ns = known_range.get("first_ns") or 0, known_range.get("last_ns") or 0
        span_s = max(60, (last_ns - first_ns) // NS_PER_S)
    bucket_s = next((size for size in (1, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400) if span_s / size <= 90), 604800)
    found = source.ttft((f"bucket:{bucket_s}",), filters)
    rows = [{"bucket": row["bucket"], "n": row["requests"], "sections": row["sections"]} for row in found]
    tail = [{"bucket": row["bucket"], "n": row["p99_requests"], "sections": row["p99_sections"]} for row in found]
    left, right = st.columns(2)
    with left:
        cards.section(f"Mean, over time ({bucket_s} s buckets)", f"{words.MEAN} {words.STAGES}")
        st.altair_chart(stack.over_time(rows, bucket_s=bucket_s, zone=view.zone), key="ttft_time")
    with right:
        cards.section("p99 band of each bucket", words.P99_BAND)
        chart = stack.over_time(tail, bucket_s=bucket_s, zone=view.zone, what="p99 band mean")
        st.altair_chart(chart, key="ttft_time_p99")


def for_whom(filters: Filters) -> None:
    """By a dimension: the stack, the hidden handoff, and the figures."""
    dimension = st.segmented_control(
        "By", list(DIMENSIONS), format_func=lambda name: DIMENSIONS[name], default="prefill_worker", key="ttft_by"
    )
    dimension = dimension or "prefill_worker"
    groups = sorted(source.ttft((dimension,), filters), key=lambda row: -row["mean_ns"])
    named = [row | {"label": known(row.get(dimension)), "n": row["requests"]} for row in groups]
    left, right = st.columns([3, 2])
    with left:
        cards.section(f"Mean by {DIMENSIONS[dimension]}, slowest first", words.MEAN)
        st.altair_chart(stack.by_label(named[:MOST_BARS]), key=f"ttft_by_{dimension}")
    with right:
        cards.section("Handoff: exposed and hidden", words.EXPOSED)
        pairs = [handoff(row) for row in named[:MOST_BARS]]
        if any(pair["exposed_ns"] is not None for pair in pairs):
            st.altair_chart(stack.exposed_and_hidden(pairs), key=f"ttft_handoff_{dimension}")
        else:
            st.info(
                "No handoff was seen in these requests: aggregated serving, or engines that do not report it (see Health)."
            )
    if len(named) > MOST_BARS:
        st.caption(f"{MOST_BARS} of {len(named):,} groups are drawn; the table has all.")
    st.dataframe([figures(row, DIMENSIONS[dimension]) for row in named], hide_index=True, key=f"ttft_table_{dimension}")


def handoff(row: dict[str, Any]) -> dict[str, Any]:
    """Exposed and hidden handoff of a group; unknown (not 0) where the group shows no handoff at all."""
    exposed_ns, hidden_ns = row["sections"].get("handoff"), (row.get("hidden") or {}).get("handoff")
    seen = bool(exposed_ns) or bool(hidden_ns)
    pair = {"exposed_ns": exposed_ns or 0, "hidden_ns": hidden_ns or 0}
    return {"label": row["label"], "n": row["n"], **(pair if seen else dict.fromkeys(pair))}


def figures(row: dict[str, Any], label: str) -> dict[str, str | int]:
    """A table row; percentiles over fewer than 20 requests are put in brackets."""
    percentiles = {
        name: f"({duration(row[f'{name}_ns'])})" if few(row["n"]) else duration(row[f"{name}_ns"])
        for name in ("p50", "p90", "p95", "p99")
    }
    return {label: row["label"], "n": row["n"], "mean": duration(row["mean_ns"]), **percentiles}


with states.service_or_notice():
    show(sidebar.current())
