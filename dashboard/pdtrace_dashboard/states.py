"""What a page shows when it has no answer: service down, nothing stored, or filters that match nothing.

Owns those three designs. Every one says what is missing and how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import streamlit as st

from pdtrace.reader.contract import Filters
from pdtrace_dashboard import cards, source
from pdtrace_dashboard.source import Unavailable
from pdtrace_dashboard.view import View

WORDS = {
    "prefill_worker": "prefill worker",
    "decode_worker": "decode worker",
}


@contextmanager
def service_or_notice() -> Iterator[None]:
    """Show the "service down" state instead of a traceback when the body cannot reach the service."""
    try:
        yield
    except Unavailable as error:
        down(str(error))


def down(reason: str) -> None:
    """The service does not answer: which address, what to start."""
    st.markdown(f"#### No answer from the pdtrace service at `{source.url()}`")
    st.error(reason, icon=":material/cloud_off:")
    st.markdown(
        "Start it with `pdtrace up` (service, dashboard and collectors) or `pdtrace serve`, "
        "or set `PDTRACE_URL` to where it runs and restart the dashboard. Live comes back by itself; reload the other pages."
    )


def nothing(view: View, filters: Filters) -> None:
    """No request to show: nothing stored at all, or the filters and range exclude everything."""
    stored = source.facets(Filters())
    if not stored.get("requests"):
        st.markdown("#### No requests yet: nothing has been sent to this service")
        st.markdown(
            "Point an engine's OTLP exporter at it, for instance "
            "`OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317` (gRPC) or port 4318 (HTTP); "
            "load a file with `pdtrace ingest PATH --db FILE`; or run `make demo` for recorded traffic."
        )
        return
    st.markdown(
        f"#### No request matches: {stored['requests']:,} are stored, none {view.range_text} with these filters"
    )
    for sentence in which_filter(view, filters):
        st.markdown(f"- {sentence}")


def which_filter(view: View, filters: Filters) -> list[str]:
    """One sentence for each single filter that, left out, would show requests."""
    sentences = []
    for field, value in view.active().items():
        found = source.facets(replace(filters, **{field: None})).get("requests", 0)
        if found:
            sentences.append(
                f"Without the filter **{WORDS.get(field, field)} = {cards.plain(value)}** there are {found:,} requests."
            )
    if filters.since_ns is not None or filters.until_ns is not None:
        found = source.facets(replace(filters, since_ns=None, until_ns=None)).get("requests", 0)
        if found:
            sentences.append(
                f"Outside the time range ({view.range_text}) there are {found:,}: choose a longer one in the sidebar."
            )
    return sentences or ["No single filter is to blame; clear all filters in the sidebar."]
