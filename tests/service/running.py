"""Starts `pdtrace serve` and talks to it as strangers do: the SDK's exporters, HTTP, signals.

Owns fixtures only.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.command import environment


class Running:
    """One service process."""

    def __init__(self, process: subprocess.Popen[str], addresses: dict[str, str]) -> None:
        self.process = process
        self.api = httpx.Client(base_url=addresses["api"], timeout=30)
        self.grpc = addresses["grpc"]
        self.http = addresses["http"]

    def send(self, body: bytes) -> httpx.Response:
        """Export protobuf over OTLP/HTTP."""
        headers = {"content-type": "application/x-protobuf"}
        return httpx.post(f"{self.http}/v1/traces", content=body, headers=headers, timeout=30)

    def requests(self, **query: Any) -> list[dict[str, Any]]:
        """Rows of /v1/requests."""
        rows: list[dict[str, Any]] = self.api.get("/v1/requests", params=query).raise_for_status().json()
        return rows

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; exit status and stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@contextmanager
def serve(db: Path, *options: str) -> Iterator[Running]:
    """A service on free ports; ended at the end, if the test has not done so."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pdtrace.cli", "serve", "--json", "--db", str(db),
            "--grpc-port", "0", "--http-port", "0", "--api-port", "0", *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            _, errors = process.communicate(timeout=60)
            raise AssertionError(f"the service did not start: {errors}")
        running = Running(process, json.loads(line))
        with running.api:
            yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def eventually(ask: Callable[[], Any], wanted: Callable[[Any], bool], within_s: float = 30.0) -> Any:
    """The first answer of ``ask`` that is ``wanted``; the last one if none comes in time."""
    deadline = time.monotonic() + within_s
    while True:
        answer = ask()
        if wanted(answer) or time.monotonic() > deadline:
            return answer
        time.sleep(0.05)


def vllm_request(number: int, start_ns: int) -> bytes:
    """One vLLM server span that reports a whole request, as protobuf (attribute names: vLLM 0.11 tracing)."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    service = resource_spans.resource.attributes.add()
    service.key, service.value.string_value = "service.name", "vllm"
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "vllm.llm_engine"
    span = scope_spans.spans.add()
    span.trace_id = number.to_bytes(16, "big")
    span.span_id = number.to_bytes(8, "big")
    span.name = "llm_request"
    span.kind = 2
    span.start_time_unix_nano = start_ns
    span.end_time_unix_nano = start_ns + 2_000_000_000
    texts = {"gen_ai.request.id": f"cmpl-{number}", "gen_ai.response.model": "tiny"}
    seconds = {
        "gen_ai.latency.time_to_first_token": 0.5,
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_in_queue": 0.1,
        "gen_ai.latency.time_in_model_prefill": 0.4,
    }
    for key, text in texts.items():
        attribute = span.attributes.add()
        attribute.key, attribute.value.string_value = key, text
    for key, value in seconds.items():
        attribute = span.attributes.add()
        attribute.key, attribute.value.double_value = key, value
    return request.SerializeToString()
