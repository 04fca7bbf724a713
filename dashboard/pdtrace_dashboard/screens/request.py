"""Request: what happened to this one?

Owns the order of the parts; each part is a function of one row in pdtrace_dashboard.request_parts.
"""

from __future__ import annotations

import streamlit as st

from pdtrace.reader.contract import Row
from pdtrace_dashboard import cards, headline, request_parts, sidebar, source, states
from pdtrace_dashboard.format import clock_time, duration
from pdtrace_dashboard.view import View


def show(view: View) -> None:
    """Find the request named in the URL or typed, then every part of it."""
    # the URL leads when it names one (a link, a click); afterwards the text field does
    if linked := st.query_params.get("id"):
        st.session_state.setdefault("request_id", linked)
    any_id = st.text_input(
        "Request", value=st.session_state.get("request_id", ""), placeholder="request id, trace id or uid",
        help="Any id of the request. A trace with several requests lists them.",
    ).strip()  # fmt: skip
    if not any_id:
        cards.headline("No request is open.")
        st.markdown("Type an id above, or open **Requests** and click a row.")
        return
    st.session_state["request_id"] = any_id
    if st.query_params.get("id") != any_id:
        st.query_params["id"] = any_id
    rows = source.request(any_id)
    if not rows:
        cards.headline(f"No request has the id {any_id}.")
        st.markdown("Ids are searched in full here; on **Requests** their first 4 characters are enough.")
        return
    row = rows[0] if len(rows) == 1 else one_of(rows, any_id, view)
    cards.headline(headline.request(row))
    request_parts.facts(row, view)
    request_parts.timeline(row)
    left, right = st.columns([11, 9])
    with left:
        request_parts.proof(row)
    with right:
        request_parts.savings(row)
        request_parts.warnings(row)
    request_parts.claims(row)
    request_parts.evidence(row)
    request_parts.clocks(row)
    request_parts.raw(row, view)


def one_of(rows: list[Row], any_id: str, view: View) -> Row:
    """Several requests share the id (a reused trace): let the user choose."""
    return st.selectbox(
        f"{len(rows)} requests share the id {any_id}",
        rows,
        format_func=lambda row: (
            f"{row['request_id']}, {clock_time(row['t0_ns'], view.zone)}, TTFT {duration(row['ttft_ns'])}"
        ),
    )


with states.service_or_notice():
    show(sidebar.current())
