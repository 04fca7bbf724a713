"""What leaves the collectors on the wire, received by a bare gRPC server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as service_grpc

ROOT = Path(__file__).parents[2]
PROC = Path(__file__).parent / "fixtures" / "proc"


class Receiver(service_grpc.MetricsServiceServicer):
    def __init__(self) -> None:
        self.requests: list[service.ExportMetricsServiceRequest] = []

    def Export(  # noqa: N802  the name that the generated service asks for
        self, request: service.ExportMetricsServiceRequest, context: object
    ) -> service.ExportMetricsServiceResponse:
        self.requests.append(request)
        return service.ExportMetricsServiceResponse()


@pytest.fixture
def receiver() -> Iterator[tuple[Receiver, int]]:
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    servicer = Receiver()
    service_grpc.add_MetricsServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, port
    server.stop(None)


def run_once(port: int, *more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "collectors"), "OTEL_EXPORTER_OTLP_TIMEOUT": "3"}
    return subprocess.run(
        [sys.executable, "-m", "pdtrace_collectors", "--once", "--endpoint", f"http://127.0.0.1:{port}",
         "--procfs", str(PROC), "--host", "node-7", *more],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_one_round_arrives_as_otlp(receiver: tuple[Receiver, int]) -> None:
    servicer, port = receiver
    done = run_once(port)
    assert done.returncode == 0, done.stderr
    (resource_metrics,) = servicer.requests[0].resource_metrics
    resource = {a.key: a.value.string_value for a in resource_metrics.resource.attributes}
    assert resource["service.name"] == "pdtrace-collectors"
    assert resource["host.name"] == "node-7"
    metrics = {m.name: m for m in resource_metrics.scope_metrics[0].metrics}
    io = metrics["system.network.io"]
    assert io.unit == "By"
    assert io.sum.is_monotonic
    assert io.sum.aggregation_temporality == 2
    points = {tuple(sorted((a.key, a.value.string_value) for a in p.attributes)): p for p in io.sum.data_points}
    lo = points[("network.interface.name", "lo"), ("network.io.direction", "receive")]
    assert lo.as_int == 73218
    assert 0 < lo.start_time_unix_nano < lo.time_unix_nano
    eth0 = points[("network.interface.name", "eth0"), ("network.io.direction", "receive")]
    assert eth0.as_double == 2.0**64  # 2**64 - 1 does not fit OTLP's signed integers
    up = {p.attributes[0].value.string_value: p.as_int for p in metrics["pdtrace.collector.up"].gauge.data_points}
    assert up == {"netdev": 1, "nvml": 1}


def test_nobody_listening_is_exit_1_not_a_hang() -> None:
    done = run_once(1)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_wrong_interval_is_refused() -> None:
    done = run_once(1, "--interval", "0")
    assert done.returncode == 2
    assert "--interval 0 must be above 0 seconds" in done.stderr
