"""`pdtrace proxy` as a program: in front of an engine, sending to a running service, asked for with `pdtrace requests`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.cli.command import environment, pdtrace
from tests.dropins.engine import STREAMS, Engine, engine
from tests.service.running import Running, eventually, serve

PATH = "/v1/chat/completions"


class Proxy:
    """A running `pdtrace proxy`."""

    def __init__(self, process: subprocess.Popen[str], addresses: dict[str, str]) -> None:
        self.process = process
        self.addresses = addresses
        self.url = addresses["proxy"]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit status and stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@contextmanager
def proxy(upstream: str, *options: str) -> Iterator[Proxy]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pdtrace.cli", "proxy", "--json", "--upstream", upstream, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"the proxy did not start: {process.communicate(timeout=30)[1]}")
        yield Proxy(process, json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Engine]:
    with engine() as it:
        yield it


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serve(tmp_path_factory.mktemp("proxy") / "p.duckdb") as running:
        yield running


def rows_of(service: Running, run: str, count: int) -> list[dict[str, Any]]:
    """What `pdtrace requests --json` says of a run once all its requests have ended."""

    def ask() -> list[dict[str, Any]]:
        done = pdtrace("requests", "--json", "--url", str(service.api.base_url), "--run", run)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def all_there(rows: list[dict[str, Any]]) -> bool:
        return len(rows) == count and all(row["outcome"] != "in_flight" for row in rows)

    rows: list[dict[str, Any]] = eventually(ask, all_there)
    assert len(rows) == count
    return rows


def test_the_whole_way(upstream: Engine, service: Running) -> None:
    """Client > proxy > engine, and proxy > service > `pdtrace requests`: outcomes, tokens, and a TTFT the client had."""
    clients_ns: dict[str, int] = {}
    upstream.cancelled.clear()
    with proxy(upstream.url, "--endpoint", service.http, "--run", "way") as it:
        for behave in ("stream", "reasoning", "unary", "429", "400", "500", "error_later", "cut", "endless", "reset"):
            begin = time.monotonic_ns()
            headers = {"x-request-id": behave}
            asked = {"model": "asked-for", "behave": behave, "wait_s": 0.02}
            with httpx.stream("POST", it.url + PATH, json=asked, headers=headers) as answer:
                try:
                    for piece in answer.iter_raw():
                        if behave not in clients_ns and (b"gr" in piece or b"hm" in piece):
                            clients_ns[behave] = time.monotonic_ns() - begin
                            if behave == "endless":
                                break
                except httpx.RemoteProtocolError:
                    assert behave == "reset"
        assert upstream.cancelled.wait(5)
        with openai.OpenAI(base_url=f"{it.url}/v1", api_key="none", max_retries=0) as client:
            headers = {"x-request-id": "openai"}
            messages: list[Any] = [{"role": "user", "content": "hi"}]
            stream = client.chat.completions.create(model="m", messages=messages, stream=True, extra_headers=headers)
            assert "".join(c.choices[0].delta.content or "" for c in stream if c.choices) == "grüß 🙂 dich"
        status, errors = it.stop()
    assert status == 0, errors
    assert "Traceback" not in errors
    rows = {row["request_id"]: row for row in rows_of(service, "way", 11)}
    assert {name: row["outcome"] for name, row in rows.items()} == {
        "stream": "ok", "reasoning": "ok", "unary": "ok", "429": "rejected", "400": "invalid", "500": "failed",
        "error_later": "failed", "cut": "failed", "endless": "cancelled", "reset": "failed", "openai": "ok",
    }  # fmt: skip
    for name in ("stream", "reasoning", "error_later", "cut", "endless", "reset"):
        row = rows[name]
        assert row["ttft_basis"] == "frontend"
        assert 20_000_000 <= row["ttft_ns"] <= clients_ns[name], name
        assert sum(row["sections"].values()) == row["ttft_ns"]
        assert row["model"] == "tiny"
    for name in ("unary", "429", "400", "500"):
        assert rows[name]["ttft_ns"] is None
    assert (rows["unary"]["input_tokens"], rows["unary"]["output_tokens"]) == (7, 3)
    assert rows["429"]["model"] == "asked-for"


def test_prefill_first_with_opaque_engines(service: Running) -> None:
    """Engines that say nothing: the proxy's calls stand for their visits."""
    with engine() as p, engine() as d:
        options = ("--prefill-upstream", p.url, "--opaque", "--endpoint", service.http, "--run", "pd")
        with proxy(d.url, *options) as it:
            asked = {"model": "tiny", "stream": True, "wait_s": 0.05, "step_s": 0.01}
            answer = httpx.post(it.url + PATH, json=asked, headers={"x-request-id": "pd-1"})
            assert answer.content == b"".join(STREAMS["stream"])
            assert it.stop() == (0, "")
        (row,) = rows_of(service, "pd", 1)
        assert d.seen[0]["body"]["kv_transfer_params"] == {"remote_engine_id": "p0"}
    p_id, d_id = (one.url.removeprefix("http://") for one in (p, d))
    assert (row["prefill_worker"], row["decode_worker"], row["mode"]) == (p_id, d_id, "sequential")
    assert row["outcome"] == "ok"
    assert row["sections"]["prefill_opaque"] >= 50_000_000
    assert row["sections"]["decode_opaque"] >= 70_000_000  # the wait, the role chunk and the first token
    assert sum(row["sections"].values()) == row["ttft_ns"]


def test_ctrl_c_ends_it_with_0_also_with_nobody_to_send_to(upstream: Engine) -> None:
    with proxy(upstream.url, "--endpoint", "http://127.0.0.1:1") as it:
        assert httpx.post(it.url + PATH, json={}).status_code == 200
        status, errors = it.stop(signal.SIGINT)
    assert status == 0
    assert "Traceback" not in errors


def test_a_second_program_on_the_port_is_refused(upstream: Engine) -> None:
    with proxy(upstream.url) as it:
        port = it.url.rpartition(":")[2]
        done = pdtrace("proxy", "--upstream", upstream.url, "--port", port)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert "taken" in done.stderr


def test_bad_upstreams_are_refused_with_one_clear_line(upstream: Engine) -> None:
    done = pdtrace("proxy", "--upstream", "localhost:8000")
    assert done.returncode == 2
    assert "--upstream: 'localhost:8000' is no http or https address" in done.stderr
    assert "looks like http://" in done.stderr

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = pdtrace("proxy", "--upstream", f"http://127.0.0.1:{port}", "--port", "0")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert "does not accept connections" in done.stderr

    done = pdtrace("proxy", "--upstream", upstream.url, "--port", "0", "--endpoint", "4318")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "4318" in done.stderr

    done = pdtrace("proxy", "--upstream", f"http://127.0.0.1:{port}", "--port", str(port), "--no-check")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "the proxy itself" in done.stderr


def test_an_engine_that_comes_later(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with proxy(f"http://127.0.0.1:{port}", "--no-check") as it:
        assert httpx.get(f"{it.url}/v1/models").status_code == 502
        with socket.create_server(("127.0.0.1", port)) as late:
            late.settimeout(5)
            with httpx.Client() as client, pytest.raises(httpx.TimeoutException):
                client.get(f"{it.url}/v1/models", timeout=0.2)
            late.accept()[0].close()
        assert it.stop()[0] == 0
