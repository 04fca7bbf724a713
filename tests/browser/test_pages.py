"""Every page in a real browser, in front of a running service with traffic."""

from __future__ import annotations

import json
import re

import pytest

HEADLINES = {
    "": r"(did not succeed|Nothing stands out|TTFT)",
    "ttft": r"^TTFT p99 is .+ \(n = [\d,]+\)",
    "requests": r"^[\d,]+ requests, 100 shown by TTFT, most first; the first took [\d.,]+ m?s",
    "request": r"^No request is open",
    "health": r"^Nothing was rejected, 0 in conflict, of [\d,]+ spans \([\d,]+ requests\)",
}


@pytest.mark.parametrize("page", HEADLINES)
def test_a_page_says_its_headline_and_shows_no_error(pages, page):
    headline = pages.open(page)
    assert re.search(HEADLINES[page], headline), headline
    assert pages.exceptions() == []
    assert pages.problems == []


def test_a_click_on_a_row_opens_that_request_with_its_proof(pages, service):
    pages.open("requests", range="60m")
    first = pages.cells()[0]
    pages.click_cell(250, 52)  # the request's id in the first row, below the header
    pages.page.wait_for_url(re.compile(r"/request\?"))
    headline = pages.headline()
    uid = re.search(r"[?&]id=([0-9a-f]+)", pages.page.url)[1]
    [row] = service.requests(q=uid)
    assert row["request_id"] in first
    assert headline.startswith("First token after ")
    body = pages.page.inner_text("body")
    assert f"TTFT {row['ttft_ns']:,} ns: they agree to the nanosecond." in body
    for part in (
        "Reported TTFTs, reconciled",
        "Evidence, not charged",
        "Warnings",
        "Where it went, and what fixing it would buy",
    ):
        assert part in body
    assert "range=60m" in pages.page.url
    trace = json.loads(pages.download("Open in Perfetto: download the trace"))
    assert trace["traceEvents"]
    assert pages.exceptions() == []


def test_raw_spans_are_shown_on_demand(pages, service):
    row = service.requests(limit=1, order_by="ttft", descending=True)[0]
    pages.open("request", id=row["uid"])
    header = pages.page.locator("th", has_text="span id")
    assert header.count() == 0
    pages.page.get_by_text(re.compile(r"^Raw spans \(\d+\)$")).click()
    header.wait_for(state="attached")
    assert pages.exceptions() == []


@pytest.mark.parametrize("page", ["", "ttft", "requests"])
def test_filters_that_match_nothing_are_named(pages, page):
    headline = pages.open(page, model="no-such-model")
    assert re.match(r"No request matches: [\d,]+ are stored, none last 15 min with these filters", headline)
    assert "Without the filter model = no-such-model there are" in pages.page.inner_text("body")
    assert pages.exceptions() == []


def test_an_id_nobody_has_is_said_so(pages):
    assert pages.open("request", id="no-such-id") == "No request has the id no-such-id."
