"""How long until a sent span is visible through the API, at 5,000 spans a second, against a running service.

Owns the load (recordings retold to now, serialised beforehand so that the sender costs little), the markers and the
polling. A marker is one native request span with an id of its own; its age when /v1/requests/{id} first knows it counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pdtrace.demo.recording import Item, load
from pdtrace.demo.retell import Retelling
from pdtrace.demo.sender import trace_requests

_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_TICK_S = 0.1
_GIVE_UP_S = 30.0


def load_bodies(spans: int) -> list[tuple[bytes, int]]:
    """(export request, spans) of Dynamo requests that start about now, at least ``spans`` of them."""
    recording = load("dynamo-sequential")
    spans_of = [item for item in recording.items if isinstance(item.message, Span)]
    shift_ns = time.time_ns() - recording.end_ns
    out: list[tuple[bytes, int]] = []
    total = loop = 0
    while total < spans:
        retelling = Retelling(recording.start_ns, recording.end_ns, shift_ns, f"f{os.getpid():x}{loop:x}")
        items = [
            Item(i.ready_ns, i.resource, i.scope, retelling.span(i.message))
            for i in spans_of
            if isinstance(i.message, Span)
        ]
        out += [(request.SerializeToString(), count) for request, count in trace_requests(items)]
        total += len(items)
        loop += 1
    return out


def marker(identifier: str) -> bytes:
    """An export request with one native request span that ended just now."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "marker"
    now_ns = time.time_ns()
    span = resource_spans.scope_spans.add().spans.add(
        trace_id=os.urandom(16), span_id=os.urandom(8), name="pdtrace.request", kind=2,
        start_time_unix_nano=now_ns - 50_000_000, end_time_unix_nano=now_ns,
    )  # fmt: skip
    span.attributes.add(key="pdtrace.request.id").value.string_value = identifier
    span.attributes.add(key="pdtrace.first_token_ns").value.int_value = now_ns - 10_000_000
    return request.SerializeToString()


class Watch(threading.Thread):
    """Polls the API for markers and keeps the age at which each was first seen."""

    def __init__(self, api: str) -> None:
        super().__init__(daemon=True)
        self._api = api
        self._sent: dict[str, float] = {}
        self.ages_s: list[float] = []
        self.lost = 0
        self.done = threading.Event()

    def sent(self, identifier: str) -> None:
        """The service has acknowledged this marker now."""
        self._sent[identifier] = time.monotonic()

    def run(self) -> None:
        while not (self.done.is_set() and not self._sent):
            for identifier, since in list(self._sent.items()):
                if _known(self._api, identifier):
                    self.ages_s.append(time.monotonic() - since)
                    del self._sent[identifier]
                elif time.monotonic() - since > _GIVE_UP_S:
                    self.lost += 1
                    del self._sent[identifier]
            time.sleep(0.05)


def _known(api: str, identifier: str) -> bool:
    try:
        with urllib.request.urlopen(f"{api}/v1/requests/{identifier}", timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return False
        raise


def measure(grpc_address: str, api: str, rate: int, seconds: float) -> dict[str, object]:
    """Send ``rate`` spans a second for ``seconds`` with a marker every half second."""
    bodies = load_bodies(round(rate * seconds))
    channel = grpc.insecure_channel(grpc_address.removeprefix("http://"))
    export = channel.unary_unary(_METHOD, request_serializer=None, response_deserializer=None)
    watch = Watch(api)
    watch.start()
    start = time.monotonic()
    sent = refused = number = 0
    tick = 0
    at = iter(bodies)
    while time.monotonic() - start < seconds:
        due = min(time.monotonic() - start + _TICK_S, seconds) * rate
        while sent < due:
            body, count = next(at, (b"", 0))
            if not count:
                break
            try:
                export(body, timeout=10)
            except grpc.RpcError:
                refused += count
            sent += count
        if tick % 5 == 0:
            identifier = f"marker-{os.getpid()}-{number}"
            number += 1
            try:
                export(marker(identifier), timeout=10)
                watch.sent(identifier)
            except grpc.RpcError:
                refused += 1
        tick += 1
        time.sleep(max(0.0, start + tick * _TICK_S - time.monotonic()))
    elapsed = time.monotonic() - start
    watch.done.set()
    watch.join(_GIVE_UP_S + 10)
    channel.close()
    ages = sorted(watch.ages_s)
    return {
        "benchmark": "send to visible through the API",
        "value": round(_quantile(ages, 0.95), 3),
        "unit": "s (p95)",
        "wanted": 2.0,
        "smaller_is_better": True,
        "p50_s": round(statistics.median(ages), 3) if ages else None,
        "max_s": round(ages[-1], 3) if ages else None,
        "markers": len(ages),
        "never_seen": watch.lost,
        "spans_per_s": round((sent - refused) / elapsed),
        "refused": refused,
    }


def _quantile(ordered: list[float], q: float) -> float:
    if not ordered:
        return float("nan")
    position = (len(ordered) - 1) * q
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def main() -> None:
    """Start a service on free ports, measure, stop it, print one JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        service = subprocess.Popen(
            [sys.executable, "-m", "pdtrace", "serve", "--json", "--db", str(Path(folder) / "fresh.duckdb"),
             "--grpc-port", "0", "--http-port", "0", "--api-port", "0"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert service.stdout is not None
            line = service.stdout.readline()
            if not line:
                raise SystemExit("the service did not start; it says why above")
            addresses = json.loads(line)
            print(json.dumps(measure(addresses["grpc"], addresses["api"], options.rate, options.seconds)))
        finally:
            service.terminate()
            try:
                service.wait(60)
            except subprocess.TimeoutExpired:
                service.kill()


if __name__ == "__main__":
    main()
