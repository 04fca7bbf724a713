"""What a viewer does with the dashboard: open a page, read its headline, use a filter, click a row.

Owns the knowledge of Streamlit's markup. Asserts nothing about pdtrace.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: Streamlit's own front end looks for its server below the page's path first, whatever the server is: a 404 each.
_PROBE = re.compile(r"/_stcore/(health|host-config)$")
WAIT_MS = 30_000


class Pages:
    """One browser tab. ``problems`` collects what the console and the network complained about."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base = page, base
        self.problems: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("response", self._response)

    def _response(self, response: Any) -> None:
        if response.status >= 400 and not _PROBE.search(response.url):
            self.problems.append(f"{response.status} {response.url}")

    def open(self, page: str = "", **query: str) -> str:
        """Open a page by its path; its headline once everything is drawn."""
        self.page.goto(f"{self.base}/{page}?" + "&".join(f"{key}={value}" for key, value in query.items()))
        return self.headline()

    def settled(self) -> None:
        """Wait until no script runs. A run begins a moment after what causes it, so that moment is waited for first."""
        self.page.wait_for_timeout(300)
        self.page.wait_for_selector('[data-testid="stApp"][data-test-script-state="notRunning"]')

    def headline(self) -> str:
        """The sentence on top."""
        self.page.wait_for_selector("h4")
        self.settled()
        return str(self.page.locator("h4").first.inner_text())

    def exceptions(self) -> list[str]:
        """Texts of Streamlit's error and exception boxes."""
        found: list[str] = self.page.locator(
            '[data-testid="stException"], [data-testid="stAlertContentError"]'
        ).all_inner_texts()
        return found

    def choose(self, label: str, value: str) -> None:
        """Pick ``value`` in the select box ``label``."""
        self.page.get_by_role("combobox", name=label, exact=True).click()
        self.page.get_by_role("option", name=value, exact=True).click()
        self.settled()

    def chosen(self, label: str) -> str:
        """What the select box ``label`` shows; "" for nothing chosen."""
        return str(self.page.get_by_role("combobox", name=label, exact=True).input_value())

    def type(self, label: str, text: str) -> None:
        """Type into the text field ``label`` and press Enter."""
        field = self.page.get_by_label(label, exact=True)
        field.fill(text)
        field.press("Enter")
        self.settled()

    def counts(self) -> tuple[int, int]:
        """(whole-script runs, refreshes of the live part) so far in this session, as the Live page tells them."""
        mark = self.page.locator("[data-refreshes]")
        return int(mark.get_attribute("data-page-runs")), int(mark.get_attribute("data-refreshes"))

    def wait_for_refreshes(self, more: int) -> None:
        """Until the live part was redrawn ``more`` times."""
        target = self.counts()[1] + more
        self.page.wait_for_function(
            "wanted => Number(document.querySelector('[data-refreshes]')?.dataset.refreshes) >= wanted",
            arg=target,
            timeout=WAIT_MS + more * 4000,
        )

    def elements(self) -> int:
        """Elements in the document, without the insides of charts: those follow the traffic."""
        return int(
            self.page.evaluate("document.querySelectorAll('*').length - document.querySelectorAll('svg *').length")
        )

    def marks(self, chart: int) -> list[str]:
        """What the bars of the page's ``chart``-th chart tell a screen reader, which is what their tooltips tell."""
        found: list[str] = self.page.evaluate(
            """at => [...document.querySelectorAll('[data-testid="stVegaLiteChart"]')[at].querySelectorAll('path[aria-label]')]
                .map(mark => mark.getAttribute('aria-label'))""",
            chart,
        )
        return found

    def click_cell(self, x: int, y: int) -> None:
        """Click into the first table, at pixels from its top left corner."""
        box = self.page.locator('[data-testid="stDataFrame"]').first.bounding_box()
        self.page.mouse.click(box["x"] + x, box["y"] + y)

    def cells(self) -> list[list[str]]:
        """The first table as text, row by row: the grid is a canvas with an accessible table of what is in view inside it."""
        self.page.wait_for_selector('canvas[data-testid="data-grid-canvas"] td', state="attached")
        rows: list[list[str]] = self.page.evaluate(
            """() => [...document.querySelector('canvas[data-testid="data-grid-canvas"]').querySelectorAll('tbody tr')]
                .map(row => [...row.querySelectorAll('td')].map(cell => cell.textContent))"""
        )
        return rows

    def download(self, button: str) -> str:
        """Click a download button; the file's text."""
        with self.page.expect_download() as started:
            self.page.get_by_role("button", name=button).click()
        return Path(started.value.path()).read_text()
