"""Requests: which ones?

Owns sort, search and paging. A click on a row opens the Request page.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import streamlit as st

from pdtrace.stages import STAGES
from pdtrace_dashboard import cards, headline, requests_table, sidebar, source, states, words
from pdtrace_dashboard.view import View

PAGE_SIZE = 100
#: Most rows of one export.
EXPORT_ROWS = 100_000
ORDERS = {
    "ttft": "TTFT",
    "t0": "arrival",
    "last": "last activity",
    "input_tokens": "tokens in",
    "output_tokens": "tokens out",
    **{stage: f"time in {stage}" for stage in STAGES},
}


def show(view: View) -> None:
    """Controls, table, and the way into one request."""
    filters = view.filters(time.time_ns())
    columns = st.columns([3, 2, 2, 1], vertical_alignment="bottom")
    search = columns[0].text_input(
        "Search", key="requests_search", placeholder="request id, trace id, uid",
        help="An exact request id, alias, trace id or uid, or its first 4 characters or more.",
    )  # fmt: skip
    search = search.strip()
    order = columns[1].selectbox("Sort by", list(ORDERS), format_func=lambda name: ORDERS[name], key="requests_order")
    largest = columns[2].segmented_control(
        "Order", ["most first", "least first"], default="most first", key="requests_way"
    )
    found = source.facets(filters).get("requests") or 0
    pages = max(1, -(-found // PAGE_SIZE))
    page = (
        int(columns[3].number_input("Page", 1, pages, key="requests_page", help=f"{PAGE_SIZE} requests a page."))
        if pages > 1
        else 1
    )
    if 0 < len(search) < 4:
        st.warning("Type at least 4 characters to search.")
        search = ""
    options = {"order_by": order, "descending": largest != "least first", "search": search or None}
    rows = source.requests(
        replace(filters, limit=PAGE_SIZE), offset=(page - 1) * PAGE_SIZE if not search else 0, **options
    )
    if not rows:
        if search:
            cards.headline(f"No request {view.range_text} has an id that is or begins with {search}.")
            st.markdown("The search keeps to the filters and the time range; choose a longer range in the sidebar.")
        else:
            states.nothing(view, filters)
        return
    way = "most first" if options["descending"] else "least first"
    cards.headline(headline.requests(len(rows), len(rows) if search else found, f"{ORDERS[order]}, {way}", rows[0]))
    cards.legend()
    chosen = st.dataframe(
        requests_table.table(rows, view.zone),
        key=f"requests_table_{st.session_state.get('requests_opened', 0)}",
        hide_index=True,
        height=760,
        on_select="rerun",
        selection_mode=["single-row", "single-cell"],
        column_config={
            "where it went": st.column_config.ImageColumn(help=f"{words.CHARGED} {words.STAGES}", width=250),
            "TTFT": st.column_config.TextColumn(help=words.TTFT, width=76),
            "outcome": st.column_config.TextColumn(help=words.OUTCOME),
            "mode": st.column_config.TextColumn(help=words.MODE),
            "prefill worker": st.column_config.TextColumn(
                help="Long ids are cut here; the request and the export have them whole."
            ),
            "decode worker": st.column_config.TextColumn(
                help="Long ids are cut here; the request and the export have them whole."
            ),
        },
    )
    at = _clicked(chosen)
    if at is not None and at < len(rows):
        st.session_state["requests_opened"] = st.session_state.get("requests_opened", 0) + 1
        st.session_state["request_id"] = rows[at]["uid"]
        st.switch_page("screens/request.py")
    st.caption("Click a row to open it.")
    st.download_button(
        "Export as CSV",
        lambda: requests_table.to_csv(source.requests(replace(filters, limit=EXPORT_ROWS), **options), view.zone),
        file_name="pdtrace-requests.csv",
        mime="text/csv",
        help=f"The same filter, order and time zone as the table; at most {EXPORT_ROWS:,} rows.",
    )


def _clicked(chosen: Any) -> int | None:
    selection = chosen["selection"]
    if selection["rows"]:
        return int(selection["rows"][0])
    return int(selection["cells"][0][0]) if selection["cells"] else None


with states.service_or_notice():
    show(sidebar.current())
