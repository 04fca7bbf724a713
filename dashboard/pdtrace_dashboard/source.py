"""Where pages get their rows: the reader of the running service, with answers kept for a few seconds.

Owns the connection and the one error pages handle. Never opens the database.
"""

from __future__ import annotations

import os
from typing import Any, Final
from urllib.parse import quote

import httpx
import streamlit as st

from pdtrace.reader.contract import Filters, Reader, Row
from pdtrace.reader.http import HttpReader, ServiceProblem

DEFAULT_URL: Final = "http://127.0.0.1:4320"
#: Answers are shared by sessions for this long: a page with five questions and three viewers asks once.
KEEP_S: Final = 5


class Unavailable(Exception):
    """The service did not answer; the message is the reader's own sentence."""


def url() -> str:
    """Address of the service: PDTRACE_URL, else the default of `pdtrace serve`."""
    return os.environ.get("PDTRACE_URL", DEFAULT_URL).rstrip("/")


def connect(address: str) -> Reader:
    """A reader over HTTP; tests put another one here."""
    return HttpReader(address)


@st.cache_resource(show_spinner=False, max_entries=4)
def _reader(address: str) -> Reader:
    return connect(address)


def _ask(question: str, *args: Any, **options: Any) -> Any:
    try:
        return getattr(_reader(url()), question)(*args, **options)
    except ServiceProblem as error:
        raise Unavailable(str(error)) from error


@st.cache_data(ttl=KEEP_S, max_entries=64, show_spinner=False)
def _kept(address: str, question: str, args: tuple[Any, ...], options: tuple[tuple[str, Any], ...]) -> Any:
    del address  # part of the cache key only
    return _ask(question, *args, **dict(options))


def _question(question: str, *args: Any, **options: Any) -> Any:
    return _kept(url(), question, args, tuple(sorted(options.items())))


def live(filters: Filters, *, window_s: int, bucket_s: int) -> Row:
    """Reader.live, never kept: it is asked again every two seconds because it changes."""
    row: Row = _ask("live", filters, window_s=window_s, bucket_s=bucket_s)
    return row


def requests(filters: Filters, **options: Any) -> list[Row]:
    """Reader.requests, kept briefly."""
    rows: list[Row] = _question("requests", filters, **options)
    return rows


def request(any_id: str) -> list[Row]:
    """Reader.request, kept briefly."""
    rows: list[Row] = _question("request", any_id)
    return rows


def spans(uid: str) -> list[Row]:
    """Reader.spans, kept briefly."""
    rows: list[Row] = _question("spans", uid)
    return rows


def ttft(by: tuple[str, ...], filters: Filters) -> list[Row]:
    """Reader.ttft, kept briefly."""
    rows: list[Row] = _question("ttft", by, filters)
    return rows


def facets(filters: Filters) -> Row:
    """Reader.facets, kept briefly."""
    row: Row = _question("facets", filters)
    return row


def ledger(filters: Filters) -> Row:
    """Reader.ledger, kept briefly."""
    row: Row = _question("ledger", filters)
    return row


def doctor() -> Row:
    """Reader.doctor, kept briefly."""
    row: Row = _question("doctor")
    return row


def perfetto(uid: str) -> bytes:
    """The request as a Perfetto trace, made by the service.

    Raises:
        Unavailable: the service does not answer or has no such request.
    """
    try:
        answer = httpx.get(f"{url()}/v1/requests/{quote(uid, safe='')}/perfetto", timeout=30)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise Unavailable(f"no Perfetto trace from {url()}: {error}") from error
    return answer.content
