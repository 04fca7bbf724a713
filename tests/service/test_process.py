"""The service end to end: a span comes in over OTLP and is a request in the API; nothing acknowledged is lost."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

from tests.cli.command import environment, pdtrace
from tests.service.running import Running, eventually, serve, vllm_request


def test_a_span_of_the_sdk_over_grpc_and_http_becomes_a_request(tmp_path: Path) -> None:
    with serve(tmp_path / "a.duckdb") as service:
        for name, exporter in (
            ("over-grpc", GrpcExporter(endpoint=service.grpc, insecure=True)),
            ("over-http", HttpExporter(endpoint=f"{service.http}/v1/traces")),
        ):
            provider = TracerProvider(resource=Resource({"service.name": "vllm"}))
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            start_ns = time.time_ns() - 3_000_000_000
            span = provider.get_tracer("vllm.llm_engine").start_span(
                "llm_request",
                kind=SpanKind.SERVER,
                start_time=start_ns,
                attributes={
                    "gen_ai.request.id": name,
                    "gen_ai.latency.time_to_first_token": 0.5,
                    "gen_ai.latency.e2e": 2.0,
                    "gen_ai.latency.time_in_queue": 0.1,
                    "gen_ai.latency.time_in_model_prefill": 0.4,
                },
            )
            span.end(start_ns + 2_000_000_000)
            provider.shutdown()
        rows = eventually(service.requests, lambda rows: len(rows) == 2)
        assert {row["request_id"] for row in rows} == {"over-grpc", "over-http"}
        for row in rows:
            assert row["ttft_ns"] == 500_000_000 == sum(row["sections"].values())
        metrics = service.api.get("/metrics").text
        assert "pdtrace_spans_stored_total 2.0" in metrics
        assert 'pdtrace_receiver_accepted_total{reason="",signal="traces",transport="grpc"} 1.0' in metrics
        assert 'pdtrace_receiver_accepted_total{reason="",signal="traces",transport="http"} 1.0' in metrics
        assert service.api.get("/readyz").status_code == 200
        status, errors = service.stop()
        assert (status, errors) == (0, "")


def send_many(service: Running, first: int, count: int) -> None:
    start_ns = time.time_ns() - 3_000_000_000
    for number in range(first, first + count):
        assert service.send(vllm_request(number, start_ns)).status_code == 200


def test_sigterm_right_after_the_acknowledgement_writes_and_derives_everything(tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    with serve(db) as service:
        send_many(service, 1, 30)
        assert service.stop() == (0, "")
    done = pdtrace("ledger", "--json", "--db", str(db))
    assert '"offered":30' in done.stdout


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Three kills, each right after the last acknowledgement, some spans sent again afterwards."""
    db = tmp_path / "a.duckdb"
    sent = 0
    for _ in range(3):
        with serve(db) as service:
            send_many(service, sent + 1, 20)
            sent += 20
            service.stop(signal.SIGKILL)
    with serve(db) as service:
        rows = eventually(service.requests, lambda rows: len(rows) == sent)
        assert {row["request_id"] for row in rows} == {f"cmpl-{number}" for number in range(1, sent + 1)}
        ingest = service.api.get("/v1/doctor").json()["ingest"]
        assert ingest["spans"] == sent
        status, errors = service.stop()
        assert status == 0, errors


def test_what_was_stored_and_not_derived_before_a_crash_is_derived_at_the_next_start(tmp_path: Path) -> None:
    from pdtrace.otlp.decode import decode
    from pdtrace.pipeline import Pipeline
    from pdtrace.store.duckdb import DuckDBStore

    db = tmp_path / "a.duckdb"
    now_ns = time.time_ns()
    store = DuckDBStore(db)
    body = vllm_request(7, now_ns - 3_000_000_000)
    Pipeline(store).add(decode("traces", body, encoding="protobuf", received_ns=now_ns, where="test"))
    store.close()  # and no derive: as after a kill between the two
    with serve(db) as service:
        rows = eventually(service.requests, lambda rows: len(rows) == 1)
        assert [row["request_id"] for row in rows] == ["cmpl-7"]


def test_the_same_spans_again_change_nothing(tmp_path: Path) -> None:
    with serve(tmp_path / "a.duckdb") as service:
        body = vllm_request(1, time.time_ns() - 3_000_000_000)
        for _ in range(3):
            assert service.send(body).status_code == 200
        ingest = eventually(
            lambda: service.api.get("/v1/doctor").json()["ingest"], lambda ingest: ingest["duplicates"] == 2
        )
        assert (ingest["spans"], ingest["duplicates"]) == (1, 2)
        assert len(eventually(service.requests, bool)) == 1


def test_a_token_is_asked_of_senders(tmp_path: Path) -> None:
    with serve(tmp_path / "a.duckdb", "--token", "s3cret") as service:
        body = vllm_request(1, time.time_ns())
        assert service.send(body).status_code == 401
        headers = {"content-type": "application/x-protobuf", "authorization": "Bearer s3cret"}
        assert httpx.post(f"{service.http}/v1/traces", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize("option", ["--api-port", "--grpc-port", "--http-port"])
def test_a_taken_port_fails_with_a_line_that_names_it(tmp_path: Path, option: str) -> None:
    with socket.socket() as owner:
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        free = [o for o in ("--api-port", "--grpc-port", "--http-port") if o != option]
        done = pdtrace(
            "serve", "--db", str(tmp_path / "a.duckdb"), option, str(port), *(part for o in free for part in (o, "0"))
        )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"127.0.0.1:{port}" in done.stderr.splitlines()[-1]
    assert "taken" in done.stderr.splitlines()[-1]


def test_a_store_that_a_service_holds_is_told_in_one_line(tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    with serve(db):
        for arguments in (
            ["requests"],
            ["rederive"],
            ["serve", "--api-port", "0", "--grpc-port", "0", "--http-port", "0"],
        ):
            done = pdtrace(*arguments, "--db", str(db))
            assert (done.returncode, done.stdout) == (1, ""), arguments
            assert len(done.stderr.splitlines()) == 1
            assert "--url" in done.stderr


def test_up_starts_all_prints_the_addresses_and_stops_all(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable, "-m", "pdtrace.cli", "up", "--db", str(tmp_path / "a.duckdb"), "--grpc-port", "0",
            "--http-port", "0", "--api-port", "0", "--dashboard-port", "0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )  # fmt: skip
    try:
        assert process.stdout is not None
        addresses = {}
        for line in process.stdout:
            if line.startswith("Ctrl-C"):
                break
            name, address = line.split()
            addresses[name] = address
        assert list(addresses) == ["api", "grpc", "http", "dashboard"]
        assert httpx.get(f"{addresses['api']}/readyz").status_code == 200
        assert httpx.get(f"{addresses['dashboard']}/_stcore/health").status_code == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
        for address in addresses.values():
            with pytest.raises(httpx.ConnectError):
                httpx.get(address)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=90)


def test_up_says_why_the_service_did_not_start(tmp_path: Path) -> None:
    done = pdtrace("up", "--db", str(tmp_path / "no" / "folder" / "a.duckdb"), "--api-port", "0")
    assert (done.returncode, done.stdout) == (1, "")
    assert "folder" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("pdtrace: the service did not start (exit status 1)")
