"""Small pieces pages share: the headline, a number with its n, a downloadable table.

Owns how they look. What they say comes from headline, words and format.
"""

from __future__ import annotations

import re

import streamlit as st

from pdtrace_dashboard import words
from pdtrace_dashboard.charts import legend as legend_of_stages
from pdtrace_dashboard.format import duration, few


def headline(sentence: str) -> None:
    """The one sentence on top of a page."""
    st.markdown(f"#### {plain(sentence)}")


def legend() -> None:
    """The stage colours, in pipeline order."""
    st.html(legend_of_stages.html())


def percentile(name: str, value_ns: float | None, n: int) -> None:
    """A TTFT percentile with its n; greyed below 20 requests."""
    text = duration(value_ns)
    st.metric(
        f"TTFT {name} (n = {n:,}{', too few' if few(n) else ''})",
        f":gray[{text}]" if few(n) or value_ns is None else text,
        help=words.PERCENTILE,
    )


def plain(text: str) -> str:
    """Text from telemetry for a place that reads Markdown: nothing in it is formatting, a link or HTML."""
    return re.sub(r"([\\`*_\[\]<>$~|&])", r"\\\1", text)


def section(title: str, hover: str) -> None:
    """Title of a chart or table with its definition one hover away."""
    st.markdown(f"**{title}**", help=hover)
