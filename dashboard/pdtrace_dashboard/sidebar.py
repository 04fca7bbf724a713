"""The filter bar: the same widgets on every page, their values in the URL.

Owns the widgets and the URL's upkeep. The meaning of a view is in pdtrace_dashboard.view.
"""

from __future__ import annotations

import time
from dataclasses import replace

import streamlit as st

from pdtrace.reader.contract import Filters, Row
from pdtrace_dashboard import source, words
from pdtrace_dashboard.source import Unavailable
from pdtrace_dashboard.timezone import BadTime, is_zone, parse, stamp
from pdtrace_dashboard.view import CHOICES, DEFAULT_RANGE, KEYS, RANGES, View, from_url, to_url

#: field -> (label, key of Reader.facets, hover text)
BARS = {
    "model": ("Model", "models", "The model the request asked for."),
    "mode": ("Mode", "modes", words.MODE),
    "prefill_worker": ("Prefill worker", "prefill_workers", "The worker (P) that computed the prompt."),
    "decode_worker": ("Decode worker", "decode_workers", "The worker (D) that produced the tokens."),
    "outcome": ("Outcome", "outcomes", words.OUTCOME),
    "run": ("Run", "runs", "The name given to a load test or an ingested file (pdtrace ingest --run NAME)."),
}
_VIEW = "view"


def current() -> View:
    """The view of this script run, as the filter bar left it."""
    view: View = st.session_state[_VIEW]
    return view


def show() -> None:
    """Draw the bar, keep the URL equal to it, and leave the view for the page."""
    problems = _seed()
    with st.sidebar:
        view, more = _widgets()
        for problem in [*problems, *more]:
            st.warning(problem)
    st.session_state[_VIEW] = view
    _write_url(view)


def _seed() -> list[str]:
    """Fill the widgets from the URL when a session begins; afterwards they lead and the URL follows.

    Streamlit forgets a widget that was not drawn in a run, as happens when a page is switched in the middle of one:
    what it forgot is filled from the view that the last run left.
    """
    state, problems = st.session_state, []
    if _VIEW in state:
        view = current()
    else:
        view, problems = from_url(st.query_params.to_dict())
    held = {
        "range": view.range,
        "zone": view.zone,
        "from": stamp(view.since_ns) if view.since_ns is not None else "",
        "to": stamp(view.until_ns) if view.until_ns is not None else "",
        **{field: getattr(view, field) for field in CHOICES.values()},
    }
    for key, value in held.items():
        if key not in state:
            state[key] = value
    return problems


def _widgets() -> tuple[View, list[str]]:
    problems: list[str] = []
    zones = dict.fromkeys(["UTC", *_browser_zone(), st.session_state["zone"]])
    st.selectbox("Time range", list(RANGES), key="range", format_func=lambda name: RANGES[name][0])
    view = View(range=st.session_state["range"])
    if view.range == "absolute":
        zone = st.session_state["zone"]
        for key, field in (("from", "since_ns"), ("to", "until_ns")):
            st.text_input(
                f"{key.capitalize()} ({zone})",
                key=key,
                placeholder="2026-03-29 01:30",
                help=f"Wall clock of {zone}, or with an offset of its own: 2026-03-29T00:30:00Z. "
                + ("Included." if key == "from" else "Not included."),
            )
            if st.session_state[key].strip():
                try:
                    view = replace(view, **{field: parse(st.session_state[key], zone)})
                except BadTime as error:
                    problems.append(f"{error}. This end of the range is not used.")
    offered = _facets(view)
    chosen = {}
    for field, (label, facet, hover) in BARS.items():
        options = [value for value in offered.get(facet) or [] if value is not None]
        held = st.session_state[field]
        if held is not None and held not in options:
            options.append(held)  # a link may name a worker that is gone: the filter stays, the page says it is empty
        chosen[field] = st.selectbox(label, options, index=None, key=field, help=hover, placeholder="any")
    st.selectbox("Time zone", list(zones), key="zone", help="One zone for every table, axis and export.")
    st.button("Clear filters", on_click=_clear)
    if view.range == "run" and not chosen["run"]:
        problems.append("Choose a run below; until then all runs are shown.")
    return replace(view, **chosen, zone=st.session_state["zone"]), problems


def _facets(view: View) -> Row:
    """Options within the time range, not narrowed by the other filters (else a choice could not be changed)."""
    try:
        return source.facets(_whole_minute(view.filters(time.time_ns())))
    except Unavailable:
        return {}  # the page itself shows the error; the bar keeps what is chosen


def _whole_minute(filters: Filters) -> Filters:
    """Start on a minute, so that the options do not change (and are not asked for) at every rerun."""
    if filters.since_ns is None:
        return filters
    minute_ns = 60 * 1_000_000_000
    return replace(filters, since_ns=filters.since_ns // minute_ns * minute_ns)


def _browser_zone() -> list[str]:
    zone = getattr(st.context, "timezone", None)
    return [zone] if isinstance(zone, str) and is_zone(zone) else []


def _clear() -> None:
    for field in CHOICES.values():
        st.session_state[field] = None
    st.session_state["range"] = DEFAULT_RANGE


def _write_url(view: View) -> None:
    wanted = to_url(view)
    held = st.query_params.to_dict()
    for key in KEYS:
        if key in wanted and held.get(key) != wanted[key]:
            st.query_params[key] = wanted[key]
        elif key not in wanted and key in held:
            del st.query_params[key]
