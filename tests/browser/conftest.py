"""A service with recorded traffic running into it, a dashboard in front of it, and a real Chromium.

Owns the three processes; each is ended by its own id. Everything listens on free ports of 127.0.0.1.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.browser.pages import Pages
from tests.cli.command import environment
from tests.service.running import Running, eventually, serve, vllm_request

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
)  # fmt: skip
#: 2026-03-29T00:30:00Z: half an hour before the clocks of Berlin go from 02:00 to 03:00.
EVENT_NS = 1_774_744_200 * 10**9
MINUTE_NS = 60 * 10**9


@contextmanager
def running(*arguments: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended at the end: asked first, then killed."""
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(**extra),
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@pytest.fixture(scope="session")
def chromium():
    """Path of a Chromium; the tests skip without one."""
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium in PATH (one of {', '.join(CHROMIUM)}): the dashboard cannot be looked at")
    return path


@pytest.fixture(scope="session")
def service(chromium, tmp_path_factory) -> Iterator[Running]:
    """Four requests around a clock change, then recorded traffic that goes on for as long as the tests may run."""
    with serve(tmp_path_factory.mktemp("browser") / "b.duckdb") as service:
        for number, minutes in enumerate((-31, 0, 29, 61), start=1):
            service.send(vllm_request(number, EVENT_NS + minutes * MINUTE_NS))
        demo = (
            "-m",
            "pdtrace.demo",
            "--endpoint",
            service.grpc,
            "--backfill",
            "90",
            "--seconds",
            "170",
            "--simulate",
            "none",
        )
        with running(*demo):
            found = eventually(
                lambda: service.api.get("/v1/requests", params={"limit": 100}).json(), lambda r: len(r) >= 60
            )
            assert len(found) >= 60
            yield service


@pytest.fixture(scope="session")
def dashboard(service) -> Iterator[tuple[str, int]]:
    """Address and process id of a dashboard that answers."""
    with running("-m", "pdtrace.cli", "dashboard", "--port", "0", "--url", str(service.api.base_url)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, f"the dashboard did not say where it is: {line!r}"
        deadline = time.monotonic() + 60
        while not _answers(address[0]):
            assert process.poll() is None, "the dashboard ended by itself"
            assert time.monotonic() < deadline, f"nothing answers at {address[0]}"
            time.sleep(0.1)
        yield address[0], process.pid


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/_stcore/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def browser(chromium):
    """One Chromium for the tests of a file; its profile is new and goes with it.

    Not for the session: while playwright is open, an event loop runs in this thread, and other tests want their own.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright (the dev extra) drives the browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, headless=True, args=list(QUIET))
        yield browser
        browser.close()


@pytest.fixture
def pages(browser, dashboard) -> Iterator[Pages]:
    """A fresh viewer (no cookies, no cache) of the dashboard; its clock and zone are Berlin's."""
    context = browser.new_context(
        viewport={"width": 1500, "height": 1300}, timezone_id="Europe/Berlin", accept_downloads=True
    )
    yield Pages(context.new_page(), dashboard[0])
    context.close()
