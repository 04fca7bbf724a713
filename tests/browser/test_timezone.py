"""One zone everywhere: a typed local range selects the same requests in table, chart and export (timezone-two-zones)."""

from __future__ import annotations

import csv
import io
import re

from tests.browser.conftest import EVENT_NS, MINUTE_NS

#: What Berlin's clocks showed at the four requests; the clocks went from 02:00 to 03:00 between the third and fourth.
WALL = ["2026-03-29 00:59:00", "2026-03-29 01:30:00", "2026-03-29 01:59:00", "2026-03-29 03:31:00"]


def test_a_typed_local_range_selects_the_same_requests_in_table_chart_and_export(pages):
    pages.open("requests", range="absolute", zone="Europe/Berlin")
    pages.type("From (Europe/Berlin)", "2026-03-29 01:30")
    pages.type("To (Europe/Berlin)", "2026-03-29 03:31")  # not included: the fourth stays out
    pages.page.wait_for_selector("h4:has-text('2 requests, 2 shown')")
    pages.settled()
    assert "from=2026-03-29T00:30:00Z" in pages.page.url.replace("%3A", ":")
    assert "to=2026-03-29T01:31:00Z" in pages.page.url.replace("%3A", ":")
    pages.choose("Sort by", "arrival")
    table = sorted(cell for row in pages.cells() for cell in row if cell.startswith("2026-"))
    assert table == [f"{WALL[1]}.000+01:00", f"{WALL[2]}.000+01:00"]

    rows = list(csv.DictReader(io.StringIO(pages.download("Export as CSV"))))
    assert sorted(row["arrived (Europe/Berlin)"] for row in rows) == table
    assert sorted(int(row["t0_ns"]) for row in rows) == [EVENT_NS, EVENT_NS + 29 * MINUTE_NS]

    pages.page.get_by_role("link", name="TTFT").click()
    pages.page.wait_for_url(re.compile(r"/ttft\?"))
    assert "(n = 2, too few for a percentile)" in pages.headline()
    pages.page.wait_for_selector("text=time, Europe/Berlin (UTC+01:00)")
    bars = {re.search(r"bucket from: (2026-\S+ \S+?);", mark)[1] for mark in pages.marks(1)}
    assert sorted(bars) == table  # buckets of less than a minute begin where these requests do


def test_the_viewer_can_choose_the_zone_of_the_browser(pages):
    pages.open("requests", range="absolute", **{"from": "2026-03-29T00:00:00Z", "to": "2026-03-29T02:00:00Z"})
    assert any(cell.endswith("00:30:00.000Z") for row in pages.cells() for cell in row)
    pages.choose("Time zone", "Europe/Berlin")  # offered because the browser is there
    pages.page.wait_for_url(re.compile("zone=Europe"))
    pages.page.locator("th", has_text="arrived (Europe/Berlin)").wait_for(state="attached")
    found = sorted(cell for row in pages.cells() for cell in row if cell.startswith("2026-"))
    assert found == [f"{WALL[1]}.000+01:00", f"{WALL[2]}.000+01:00", f"{WALL[3]}.000+02:00"]
