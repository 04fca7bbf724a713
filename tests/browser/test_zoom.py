"""A zoom into a Live chart outlives the refreshes, and zooming runs no whole script."""

from __future__ import annotations

from datetime import datetime

CHARTS = {"rates": 0, "percentiles": 1, "stack": 2}


def shown_s(chart) -> float:
    """Seconds between the first and the last label of the time axis."""
    times = [
        datetime.strptime(text, "%H:%M:%S")  # noqa: DTZ007 (only differences are looked at)
        for text in chart.locator("svg text").all_text_contents()
        if text.count(":") == 2
    ]
    return (max(times) - min(times)).total_seconds() % 86_400


def zoom_in(page, chart) -> None:
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    for _ in range(4):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(150)


def test_a_zoom_outlives_refreshes(pages):
    pages.open("", range="5m")
    pages.wait_for_refreshes(1)
    runs, _ = pages.counts()
    charts = {name: pages.page.locator('[data-testid="stVegaLiteChart"]').nth(at) for name, at in CHARTS.items()}
    whole_s = {name: shown_s(chart) for name, chart in charts.items()}
    for chart in charts.values():
        zoom_in(pages.page, chart)
    pages.settled()
    zoomed_s = {name: shown_s(chart) for name, chart in charts.items()}
    assert all(0 < zoomed_s[name] < whole_s[name] / 2 for name in charts), (whole_s, zoomed_s)
    pages.wait_for_refreshes(3)
    assert {name: shown_s(chart) for name, chart in charts.items()} == zoomed_s
    assert pages.counts()[0] == runs
    assert pages.exceptions() == []
