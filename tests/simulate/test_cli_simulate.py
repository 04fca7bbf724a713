"""`pdtrace simulate`: options, files, what is printed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pdtrace.cli.simulate import command
from pdtrace.importers.file_import import read_path


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[str]]]:
    """An OTLP/HTTP endpoint that takes everything, and the paths it was asked for."""
    paths: list[str] = []

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", paths
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.parametrize("dialect", ["native", "dynamo", "vllm", "sglang"])
def test_a_folder_with_telemetry_and_truth_the_same_to_the_byte(tmp_path: Path, dialect: str) -> None:
    told = []
    for name in ("a", "b"):
        done = simulate(
            "--scenario", "slow_link", "--requests", "60", "--seed", "3", "--dialect", dialect, "--out", str(tmp_path / name), "--json"
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        told.append(json.loads(done.output))
    assert told[0]["requests"] == sum(told[0]["ledger"].values()) == 60
    assert (told[0]["scenario"], told[0]["stage"], told[0]["affected"]) == ("slow_link", "handoff", "node-0>node-2")
    assert told[0]["ground_truth"] == str(tmp_path / "a" / "ground_truth.json")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "ground_truth.json" in files
    assert len(files) > 1
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    assert json.loads((tmp_path / "a" / "ground_truth.json").read_text())["seed"] == 3


def test_a_file_has_its_truth_beside_it(tmp_path: Path) -> None:
    done = simulate("--scenario", "healthy", "--requests", "20", "--dialect", "vllm", "--out", str(tmp_path / "x.bin"))
    assert done.exit_code == 0, done.output
    assert (tmp_path / "x.bin").stat().st_size > 0
    assert json.loads((tmp_path / "ground_truth.json").read_text())["cause"] is None
    assert "healthy (seed 1): 20 requests" in done.output


def test_sglang_calls_p_and_d_together(tmp_path: Path) -> None:
    done = simulate(
        "--scenario", "decode_saturated", "--requests", "20", "--dialect", "sglang", "--out", str(tmp_path), "--json"
    )  # fmt: skip
    told = json.loads(done.output)
    assert (told["mode"], told["stage"]) == ("overlapped", "bootstrap")


def test_a_recording_drives_it(tmp_path: Path) -> None:
    done = simulate(
        "--scenario", "healthy", "--requests", "20", "--arrivals", "azure", "--dialect", "vllm", "--out", str(tmp_path), "--json"
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    truth = json.loads((tmp_path / "ground_truth.json").read_text())
    first = min(truth["requests"], key=lambda request: request["number"])
    assert first["input_tokens"] == 374


@pytest.mark.parametrize("dialect", ["native", "vllm"])
def test_walk_writes_a_folder_for_each(tmp_path: Path, dialect: str) -> None:
    done = simulate("--scenario", "walk", "--requests", "10", "--dialect", dialect, "--out", str(tmp_path), "--json")
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.output.splitlines()]
    assert len(told) == 12
    for each in told:
        assert (tmp_path / each["scenario"] / "ground_truth.json").exists()
    seen: set[str] = set()
    for path in sorted(tmp_path.rglob("*.otlp.bin")):
        traces = {span.trace_id for batch in read_path(path) for span in batch.spans}
        assert seen.isdisjoint(traces), path  # scenarios of one seed are told apart in one store
        seen |= traces
    assert len(seen) >= sum(each["requests"] for each in told)


def test_an_endpoint_gets_it_in_real_time(endpoint: tuple[str, list[str]], tmp_path: Path) -> None:
    url, paths = endpoint
    done = simulate(
        "--scenario", "healthy", "--requests", "12", "--rate", "40", "--dialect", "vllm", "--realtime",
        "--endpoint", url, "--truth", str(tmp_path / "truth.json"), "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert told["bodies"] == len(paths) > 1  # some before the end
    assert told["undelivered"] == 0
    last_ns = max(request["end_ns"] for request in json.loads((tmp_path / "truth.json").read_text())["requests"])
    assert told["seconds"] >= (last_ns - told["start_ns"]) / 1e9 * 0.9


def test_nobody_at_the_endpoint_is_said(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        port = server.server_address[1]
    done = simulate(
        "--scenario", "healthy", "--requests", "5", "--dialect", "vllm",
        "--endpoint", f"http://127.0.0.1:{port}", "--truth", str(tmp_path / "truth.json"),
    )  # fmt: skip
    assert done.exit_code == 1
    assert "cannot be reached" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--scenario", "nothing", "--out", "x"], "one of healthy, decode_saturated"),
        (["--scenario", "healthy"], "give --endpoint URL or --out PATH"),
        (["--scenario", "healthy", "--out", "x", "--endpoint", "http://h"], "give --endpoint URL or --out PATH"),
        (["--scenario", "healthy", "--endpoint", "here:4317"], "looks like http://"),
        (["--scenario", "healthy", "--out", "x", "--loop"], "go with --endpoint"),
        (["--scenario", "walk", "--out", "x.bin"], "a name without suffix"),
        (["--scenario", "healthy", "--out", "x", "--dialect", "sglang", "--mode", "sequential"], "call P and D overlapped"),
    ],
)  # fmt: skip
def test_wrong_usage_is_told(arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = simulate(*arguments)
    assert done.exit_code == 2
    assert says in done.output
    assert not list(tmp_path.iterdir())


#: A shell's background job ignores Ctrl-C, and so would a child of its child.
_LISTENING = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from pdtrace.cli.simulate import command
command()
"""


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_live_load_ends_when_told_and_hands_on_what_it_has(
    end: signal.Signals, endpoint: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, paths = endpoint
    live = subprocess.Popen(
        [
            sys.executable, "-c", _LISTENING, "--scenario", "healthy", "--realtime",
            "--loop", "--requests", "400", "--rate", "50", "--dialect", "vllm", "--endpoint", url,
            "--truth", str(tmp_path / "truth.json"),
        ],
    )  # fmt: skip
    try:
        until_s = time.monotonic() + 30
        while "/v1/traces" not in paths and time.monotonic() < until_s:  # worker states (logs) come before any request
            time.sleep(0.05)
        live.send_signal(end)
        assert live.wait(20) == 0
    finally:
        live.kill()
    truth = json.loads((tmp_path / "truth.json").read_text())
    assert 0 < truth["offered"] == len(truth["requests"]) < 400
