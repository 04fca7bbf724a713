"""`pdtrace dashboard` and `pdtrace collect`: they become the process they name, with our options."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx

from pdtrace.cli import children
from tests.cli.command import environment, pdtrace
from tests.service.running import eventually, serve


def healthy(address: str) -> bool:
    try:
        return httpx.get(f"{address}/_stcore/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_dashboard_prints_its_address_answers_there_and_stops_on_sigterm() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pdtrace.cli", "dashboard", "--port", "0", "--url", "http://127.0.0.1:1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[0] == "dashboard"
        assert words[-1] == "http://127.0.0.1:1"
        assert eventually(lambda: healthy(words[1]), bool, within_s=60)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert not healthy(words[1])
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_collect_sends_a_round_of_this_machines_devices(tmp_path: Path) -> None:
    with serve(tmp_path / "a.duckdb") as service:
        done = pdtrace("collect", "--endpoint", service.grpc, "--once")
        assert done.returncode == 0, done.stderr
        ingest = eventually(lambda: service.api.get("/v1/doctor").json()["ingest"], lambda ingest: ingest["points"] > 0)
        assert ingest["points"] > 0


def test_collect_hands_its_exit_status_on() -> None:
    done = pdtrace("collect", "--endpoint", "http://127.0.0.1:1", "--once")
    assert done.returncode == 1
    assert pdtrace("collect", "--interval", "-1").returncode == 2


def test_a_child_that_does_not_end_is_killed_after_the_time_it_has() -> None:
    stubborn = children.start(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()",
        ],
        {},
        capture=True,
    )
    assert stubborn.stdout is not None
    assert stubborn.stdout.readline() == "up\n"
    children.stop(stubborn, 0.2)
    assert stubborn.returncode == -signal.SIGKILL
    children.stop(stubborn, 0.2)  # a second time is harmless
    stubborn.stdout.close()
