"""Live refreshes by itself without taking anything from the viewer, and without growing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REFRESHES = 10


def rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("no /proc here to read the dashboard's memory from")
    return int(re.search(r"VmRSS:\s+(\d+) kB", status.read_text())[1])


def test_filters_and_scroll_survive_refreshes_without_a_whole_run(pages):
    pages.page.set_viewport_size({"width": 1500, "height": 700})  # lower than the page, so that it scrolls
    pages.open("", range="5m")
    pages.choose("Outcome", "ok")
    pages.page.wait_for_url(re.compile("outcome=ok"))
    pages.wait_for_refreshes(1)
    pages.page.locator('[data-testid="stMain"]').evaluate("main => main.scrollTo(0, 240)")
    looked_at = pages.page.get_by_text("Where the mean TTFT goes")
    at = looked_at.bounding_box()["y"]
    assert 0 < at < 700
    runs, refreshes = pages.counts()
    pages.wait_for_refreshes(REFRESHES)
    runs_after, refreshes_after = pages.counts()
    assert refreshes_after - refreshes >= REFRESHES
    assert runs_after == runs  # not one whole-script run
    assert pages.chosen("Outcome") == "ok"
    assert abs(looked_at.bounding_box()["y"] - at) < 2  # a headline that takes a line more moves nothing under the eyes
    assert "outcome=ok" in pages.page.url
    assert "range=5m" in pages.page.url
    assert pages.exceptions() == []


def test_refreshes_add_no_elements_and_no_memory(pages, dashboard):
    pages.open("", range="5m", outcome="ok")  # answered requests only: the table of those in flight stays away
    pages.wait_for_refreshes(2)
    elements, memory_kib = pages.elements(), rss_kib(dashboard[1])
    pages.wait_for_refreshes(REFRESHES)
    assert pages.elements() <= elements + REFRESHES // 2  # less than one a refresh
    assert rss_kib(dashboard[1]) - memory_kib < 64 * 1024
    assert pages.page.locator('[data-testid="stVegaLiteChart"]').count() == 5


def test_the_pause_button_stops_refreshing_and_keeps_the_page(pages):
    pages.open("", range="5m")
    pages.wait_for_refreshes(1)
    pages.page.get_by_text("Pause", exact=True).click()
    pages.settled()
    pages.page.wait_for_timeout(500)
    _, refreshes = pages.counts()
    pages.page.wait_for_timeout(5000)  # two refreshes would fit
    assert pages.counts()[1] == refreshes
    assert pages.headline()


def test_a_reload_and_another_page_keep_the_filters(pages):
    pages.open("", range="60m")
    pages.choose("Outcome", "ok")
    pages.page.wait_for_url(re.compile("outcome=ok"))
    pages.page.reload()
    pages.headline()
    assert pages.chosen("Outcome") == "ok"
    assert "last 60 min" in pages.chosen("Time range")
    pages.page.get_by_role("link", name="TTFT").click()
    pages.page.wait_for_url(re.compile(r"/ttft\?"))
    pages.headline()
    assert pages.chosen("Outcome") == "ok"
    assert {"range=60m", "outcome=ok"} <= set(pages.page.url.partition("?")[2].split("&"))
