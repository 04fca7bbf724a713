"""The parts of the Request page, each a function of one full row of Reader.request.

Owns tables and their words. The timeline's marks are in charts.lanes.
"""

from __future__ import annotations

import json
from typing import Any

import streamlit as st

from pdtrace.stages import HIDEABLE
from pdtrace_dashboard import cards, source, words
from pdtrace_dashboard.charts import lanes
from pdtrace_dashboard.format import clock_time, duration, exact, known, share
from pdtrace_dashboard.palette import group_of
from pdtrace_dashboard.source import Unavailable
from pdtrace_dashboard.view import View

Row = dict[str, Any]
#: Raw spans shown at once.
MOST_SPANS = 500


def facts(row: Row, view: View) -> None:
    """Who, when and how it was joined."""
    columns = st.columns(4)
    columns[0].markdown(
        f"arrived {clock_time(row['t0_ns'], view.zone)} ({view.zone})  \n"
        f"model {_plain(row['model'])}  \nrun {_plain(row.get('run'))}"
    )
    columns[1].markdown(
        f"prefill worker {_plain(row['prefill_worker'])}  \ndecode worker {_plain(row['decode_worker'])}  \nattempts {row['attempts']}"
    )
    columns[2].markdown(
        f"tokens in {known(row['input_tokens'])}, out {known(row['output_tokens'])}  \n"
        f"cached on P {known(row['cached_tokens'])}  \nwasted {duration(row.get('wasted_ns'))}",
        help=words.WASTED,
    )
    columns[3].markdown(
        f"joined by {known(row['stitched_by'])}, {known(row.get('span_count'))} spans  \n"
        f"dialects {', '.join(row.get('dialects') or []) or 'unknown'}  \nTTFT as seen by {known(row['ttft_basis'])}",
        help=words.STITCHED,
    )
    ids = f"request id {row['request_id']} · trace {', '.join(row['trace_ids']) or 'none'} · uid {row['uid']}"
    st.caption(cards.plain(ids))


def charged_list(row: Row) -> list[list[Any]]:
    """[stage, start_ns, end_ns] in order: to the first token, or without one to the end."""
    return row.get("section_list") or row.get("section_list_to_end") or []


def timeline(row: Row) -> None:
    """Lanes and the charged strip; the window by default, the whole request on demand."""
    window = row["window"] or [row["t0_ns"], None]
    t0_ns, t1_ns = window[0], window[1]
    sections = charged_list(row)
    activities = row.get("activities") or []
    ends = [one["end_ns"] for one in activities if one["end_ns"]] + [end_ns for _, _, end_ns in sections]
    last_ns = max([*ends, row.get("last_ns") or 0, row.get("end_ns") or 0, t0_ns + 1])
    cards.section("What was going on, and what was charged", f"{words.CHARGED} {words.STAGES}")
    whole = t1_ns is None or st.toggle(
        "Show the whole request, not only the time to the first token", key="request_whole"
    )
    until_ns = last_ns if whole else max(t1_ns, t0_ns + 1)
    cards.legend()
    st.altair_chart(
        lanes.timeline(activities, sections, t0_ns=t0_ns, until_ns=until_ns, t1_ns=t1_ns), key="request_timeline"
    )
    if len(activities) > lanes.MOST_BARS:
        st.caption(f"The {lanes.MOST_BARS} longest of {len(activities):,} activities are drawn; Perfetto shows all.")
    if not activities:
        st.info(
            "No activity is known of this request: only its outer span or record arrived. Health says which flag shows more."
        )


def proof(row: Row) -> None:
    """Sections in order with exact lengths, and their sum beside the TTFT."""
    sections = charged_list(row)
    t0_ns = (row["window"] or [row["t0_ns"]])[0]
    cards.section("Sections, exact", words.CHARGED)
    total_ns = sum(end_ns - start_ns for _, start_ns, end_ns in sections)
    st.markdown(verdict(row["ttft_ns"], total_ns, len(sections)))
    st.dataframe(
        [
            {
                "stage": stage,
                "group": group_of(stage),
                "after arrival (ns)": f"{start_ns - t0_ns:,}",
                "length (ns)": f"{end_ns - start_ns:,}",
                "share": share(end_ns - start_ns, total_ns),
            }
            for stage, start_ns, end_ns in sections
        ],
        hide_index=True,
        key="request_sections",
    )


def verdict(ttft_ns: int | None, total_ns: int, count: int) -> str:
    """Whether ``count`` sections that sum to ``total_ns`` are the whole TTFT, to the nanosecond."""
    if ttft_ns is None:
        return f"No first token, so no TTFT. Charged to the end: **{exact(total_ns)}**."
    difference_ns = ttft_ns - total_ns
    agree = (
        f"they differ by {exact(difference_ns)}: please report this"
        if difference_ns
        else "they agree to the nanosecond"
    )
    return f"Sum of {count} sections **{exact(total_ns)}**, TTFT **{exact(ttft_ns)}**: {agree}."


def claims(row: Row) -> None:
    """Every TTFT that somebody reported, and what it really measures."""
    cards.section("Reported TTFTs, reconciled", words.CLAIMS)
    if not row.get("ttft_claims"):
        st.markdown("No component reported a TTFT of its own.")
        return
    st.dataframe(
        [
            {
                "reported by": claim["name"],
                "value": duration(claim["ttft_ns"]),
                "difference from this page": _signed(claim["difference_ns"]),
                "what it measures": claim["measures"],
            }
            for claim in row["ttft_claims"]
        ],
        hide_index=True,
        key="request_claims",
    )


def savings(row: Row) -> None:
    """Exposed, hidden and what-if saving, stage by stage."""
    cards.section("Where it went, and what fixing it would buy", f"{words.EXPOSED} {words.SAVING}")
    exposed, hidden, saving = row.get("sections") or {}, row.get("hidden") or {}, row.get("saving") or {}
    stages = [
        stage
        for stage in dict.fromkeys([*exposed, *hidden, *saving])
        if exposed.get(stage) or hidden.get(stage) or saving.get(stage)
    ]
    if not stages:
        st.markdown("Nothing was charged: there is no TTFT window.")
        return
    st.dataframe(
        [
            {
                "stage": stage,
                "exposed": duration(exposed.get(stage, 0)),
                "hidden": duration(hidden.get(stage, 0)) if stage in HIDEABLE else "hides nothing",
                "saving": duration(saving.get(stage)),
            }
            for stage in stages
        ],
        hide_index=True,
        key="request_savings",
    )


def warnings(row: Row) -> None:
    """What was adjusted, is missing or in doubt."""
    cards.section("Warnings", "Anything repaired, dropped or unknown leaves a mark here.")
    found = row.get("warning_list") or []
    if not found:
        st.markdown("None: nothing was adjusted and nothing is in doubt.")
    for warning in found:
        st.markdown(f"- `{warning['code']}` {cards.plain(warning['text'])}")


def evidence(row: Row) -> None:
    """Numbers that are shown and not charged."""
    cards.section(
        "Evidence, not charged", "A number or fact that says something about the request but is no section of it."
    )
    if not row.get("evidence"):
        st.markdown("None.")
        return
    st.dataframe(
        [{"name": one["name"], "value": _value(one), "what it means": one["text"]} for one in row["evidence"]],
        hide_index=True,
        key="request_evidence",
    )


def clocks(row: Row) -> None:
    """Offsets between the clocks of this request, as intervals."""
    if not row.get("offsets"):
        return
    cards.section("Clocks", words.CLOCKS)
    st.dataframe(
        [
            {
                "clock": one["clock"],
                "against": one["reference"],
                "offset at least": duration(one["low_ns"]),
                "at most": duration(one["high_ns"]),
                "applied": duration(one["applied_ns"]),
            }
            for one in row["offsets"]
        ],
        hide_index=True,
        key="request_clocks",
    )


def raw(row: Row, view: View) -> None:
    """Perfetto download, and the spans as they came, asked for only when wanted."""
    st.download_button(
        "Open in Perfetto: download the trace",
        lambda: source.perfetto(row["uid"]),
        file_name=f"{row['request_id'] or row['uid']}.perfetto.json",
        mime="application/json",
        help="Load the file at ui.perfetto.dev (it stays in your browser).",
    )
    if not st.toggle(f"Raw spans ({known(row.get('span_count'))})", key="request_raw"):
        return
    try:
        spans = source.spans(row["uid"])
    except Unavailable as error:
        st.error(str(error))
        return
    st.dataframe(
        [
            {
                f"start ({view.zone})": clock_time(span["start_ns"], view.zone),
                "name": span["name"],
                "length": duration(span["end_ns"] - span["start_ns"]) if span["end_ns"] else "open",
                "service": known((span.get("resource") or {}).get("service.name")),
                "scope": span["scope"],
                "attributes": json.dumps(span["attributes"], default=str, sort_keys=True),
                "span id": span["span_id"],
                "parent": span["parent_id"],
                "trace": span["trace_id"],
            }
            for span in spans[:MOST_SPANS]
        ],
        hide_index=True,
        key="request_spans",
    )
    if len(spans) > MOST_SPANS:
        st.caption(f"The first {MOST_SPANS} of {len(spans):,} spans; `pdtrace trace {row['uid']} --json` prints all.")


def _plain(value: object) -> str:
    return cards.plain(known(value))


def _signed(length_ns: int | None) -> str:
    if length_ns is None:
        return "unknown"
    return f"{'+' if length_ns > 0 else '-' if length_ns < 0 else ''}{duration(abs(length_ns))}"


def _value(one: Row) -> str:
    if one["unit"] == "ns" and isinstance(one["value"], int | float):
        return duration(one["value"])
    return f"{one['value']} {one['unit']}".strip()
