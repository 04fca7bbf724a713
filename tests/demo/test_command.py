"""`python -m pdtrace.demo` as a process: what reaches an OTLP receiver, and what it says when there is none."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.service.running import eventually, serve

ROOT = Path(__file__).parents[2]


class Receiver(trace_service_pb2_grpc.TraceServiceServicer, logs_service_pb2_grpc.LogsServiceServicer):
    """Takes traces and logs under the one name that both services call."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        self.logs = 0

    def Export(self, request: object, context: object) -> object:  # noqa: N802  the generated services' name
        if isinstance(request, logs_service_pb2.ExportLogsServiceRequest):
            self.logs += sum(len(s.log_records) for r in request.resource_logs for s in r.scope_logs)
            return logs_service_pb2.ExportLogsServiceResponse()
        assert isinstance(request, trace_service_pb2.ExportTraceServiceRequest)
        for resource_spans in request.resource_spans:
            service = next(a.value.string_value for a in resource_spans.resource.attributes if a.key == "service.name")
            self.spans += [(service, span) for scope in resource_spans.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, int]]:
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    servicer = Receiver()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(None)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdtrace.demo", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_a_minute_of_both_engines_arrives_with_stamps_of_now(receiver: tuple[Receiver, int]) -> None:
    servicer, port = receiver
    before_ns = time.time_ns()
    done = run("--endpoint", f"http://127.0.0.1:{port}", "--backfill", "60", "--seconds", "1", "--simulate", "none")
    assert done.returncode == 0, done.stderr
    assert "did not take" not in done.stderr
    services = {service for service, _ in servicer.spans}
    assert {
        "dynamo-frontend",
        "dynamo-worker-prefill",
        "dynamo-worker-decode",
        "vllm-router",
        "vllm-decode",
    } <= services
    assert servicer.logs > 100
    after_ns = time.time_ns()
    for _, span in servicer.spans:
        assert before_ns - 61_000_000_000 <= span.start_time_unix_nano <= span.end_time_unix_nano <= after_ns
    names = [(span.trace_id, span.span_id) for _, span in servicer.spans]
    assert len(names) == len(set(names))
    assert len(names) > 3000


def test_a_simulated_cluster_walks_beside_the_recordings(tmp_path: Path) -> None:
    with serve(tmp_path / "demo.duckdb") as service:
        done = run("--endpoint", service.grpc, "--seconds", "12", "--simulate", service.http)
        assert done.returncode == 0, done.stderr
        rows = eventually(lambda: service.requests(limit=500), lambda rows: any(r["run"] for r in rows))
    simulated = [row for row in rows if row["run"]]
    assert simulated
    assert {row["run"].rpartition("-")[0].rpartition("-")[0] for row in simulated} == {
        "healthy"
    }  # the first of the walk
    for row in simulated:
        assert row["stitched_by"] in ("parent", "request_id")
        if row["outcome"] == "ok":
            assert sum(row["sections"].values()) == row["ttft_ns"]


def test_nobody_listening_is_one_line_that_says_what_to_do() -> None:
    done = run("--endpoint", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("pdtrace demo: nothing answers at http://127.0.0.1:1; start `pdtrace up` first")
    assert "Traceback" not in done.stderr


def test_an_endpoint_without_a_port_is_told() -> None:
    done = run("--endpoint", "localhost")
    assert done.returncode == 1
    assert "has no host and port" in done.stderr
