"""Spans per CPU-second of the whole path in one process: OTLP bytes to committed, derived requests in DuckDB.

Owns two loads: the demo's recordings of Dynamo and vLLM, retold many times (small export requests, spans with many
attributes and log lines as events), and pdtrace's own spans (512 a request, few attributes, as an engine would send).
The peers take the same bytes: protobuf's parser alone (nothing kept), and the store without derivation. CPU time is the
process's, DuckDB's threads included.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pdtrace import garbage
from pdtrace.demo.recording import Item, load
from pdtrace.demo.retell import Retelling
from pdtrace.demo.sender import trace_requests
from pdtrace.model import Batch
from pdtrace.otlp.decode import decode
from pdtrace.pipeline import Pipeline
from pdtrace.store.duckdb import DuckDBStore

_RECORDINGS = ("dynamo-sequential", "dynamo-overlapped", "vllm-router")
_ADD_SPANS = 10_000  # what the service's writer puts into one transaction
_DERIVE_SPANS = 20_000
_EXPORT_SPANS = 512
_NATIVE_START_NS = 1_796_074_635_000_000_000


def bodies(spans: int) -> list[tuple[bytes, int]]:
    """(export request, its number of spans), about ``spans`` of them, in the order exporters would send them."""
    recordings = [load(name) for name in _RECORDINGS]
    out: list[tuple[bytes, int]] = []
    total = loop = 0
    while total < spans:
        recording = recordings[loop % len(recordings)]
        retelling = Retelling(recording.start_ns, recording.end_ns, loop * 60_000_000_000, f"b{loop:x}")
        items = [
            Item(item.ready_ns, item.resource, item.scope, retelling.span(item.message))
            for item in recording.items
            if isinstance(item.message, Span)
        ]
        for request, count in trace_requests(items):
            out.append((request.SerializeToString(), count))
            total += count
        loop += 1
    return out


def native_bodies(spans: int) -> list[tuple[bytes, int]]:
    """(export request, its number of spans) of sequential P/D requests in pdtrace's own words, seven spans each."""
    out: list[tuple[bytes, int]] = []
    stages = (
        ("route", 1, 2, ""), ("prefill_queue", 3, 10, "p0"), ("prefill", 10, 60, "p0"), ("handoff", 60, 70, "d0"),
        ("decode_queue", 70, 75, "d0"), ("first_token", 75, 90, "d0"),
    )  # fmt: skip
    request, count, number = ExportTraceServiceRequest(), 0, 0
    while sum(n for _, n in out) + count < spans:
        start_ns = _NATIVE_START_NS + number * 5_000_000
        trace_id, identifier = random.Random(number).randbytes(16), f"request-{number}"
        resource_spans = request.resource_spans or [request.resource_spans.add()]
        if not count:
            resource_spans[0].resource.attributes.add(key="service.name").value.string_value = "native"
            resource_spans[0].resource.attributes.add(key="host.name").value.string_value = "node-0"
            resource_spans[0].scope_spans.add().scope.name = "pdtrace"
        into = resource_spans[0].scope_spans[0].spans
        for at, (stage, low, high, worker) in enumerate((("request", 0, 300, ""), *stages)):
            span = into.add(
                trace_id=trace_id, span_id=trace_id[:7] + bytes([at]), name=f"pdtrace.{stage}", kind=1 if at else 2,
                start_time_unix_nano=start_ns + low * 1_000_000, end_time_unix_nano=start_ns + high * 1_000_000,
            )  # fmt: skip
            span.attributes.add(key="pdtrace.request.id").value.string_value = identifier
            if worker:
                span.attributes.add(key="pdtrace.attempt").value.int_value = 0
                role = "prefill" if worker == "p0" else "decode"
                span.attributes.add(key="pdtrace.worker.role").value.string_value = role
                span.attributes.add(key="service.instance.id").value.string_value = worker
            if not at:
                span.attributes.add(key="gen_ai.request.model").value.string_value = "llama"
                span.attributes.add(key="gen_ai.usage.input_tokens").value.int_value = 1000 + number % 500
                span.attributes.add(key="pdtrace.first_token_ns").value.int_value = start_ns + 95_000_000
        count += 7
        number += 1
        if count >= _EXPORT_SPANS:
            out.append((request.SerializeToString(), count))
            request, count = ExportTraceServiceRequest(), 0
    if count:
        out.append((request.SerializeToString(), count))
    return out


def batches(load_: list[tuple[bytes, int]]) -> Iterator[tuple[Batch, int]]:
    """Decoded batches of about ``_ADD_SPANS`` spans."""
    joined, size = Batch(), 0
    for body, count in load_:
        batch = decode("traces", body, encoding="protobuf", received_ns=time.time_ns(), where="bench")
        joined.spans += batch.spans
        joined.rejections += batch.rejections
        size += count
        if size >= _ADD_SPANS:
            yield joined, size
            joined, size = Batch(), 0
    if size:
        yield joined, size


def main() -> None:
    """Print one JSON line a load."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    start_up()
    measure("Dynamo and vLLM spans", bodies(wanted))
    measure("native spans", native_bodies(wanted))


def start_up() -> None:
    """What a process pays once and not for each span: modules that load on first use."""
    with tempfile.TemporaryDirectory() as folder:
        store = DuckDBStore(Path(folder) / "start.duckdb")
        pipeline = Pipeline(store)
        for batch, _ in batches(native_bodies(100)):
            pipeline.add(batch)
        pipeline.derive(time.time_ns())
        store.close()
    garbage.spare_what_is_loaded()  # as `pdtrace serve` and `pdtrace ingest` do when they start


def measure(name: str, load_: list[tuple[bytes, int]]) -> None:
    """Print one JSON line for one load."""
    total = sum(count for _, count in load_)
    with tempfile.TemporaryDirectory() as folder:
        store = DuckDBStore(Path(folder) / "bench.duckdb", threads=1)  # as `pdtrace ingest` opens it
        pipeline = Pipeline(store)
        requests = undone = 0
        adding_s = deriving_s = 0.0
        before = time.process_time()
        for batch, size in batches(load_):
            decoded = time.process_time()
            pipeline.add(batch)
            added = time.process_time()
            adding_s += added - decoded
            undone += size
            if undone >= _DERIVE_SPANS:
                requests += pipeline.derive(time.time_ns())
                undone = 0
                deriving_s += time.process_time() - added
        last = time.process_time()
        requests += pipeline.derive(time.time_ns())
        cpu_s = time.process_time() - before
        deriving_s += time.process_time() - last
        store.close()

        raw = DuckDBStore(Path(folder) / "raw.duckdb", threads=1)
        before = time.process_time()
        for batch, _ in batches(load_):
            raw.add(batch)
        raw_cpu_s = time.process_time() - before
        raw.close()
    before = time.process_time()
    for body, _ in load_:
        ExportTraceServiceRequest.FromString(body)
    parse_cpu_s = time.process_time() - before
    print(
        json.dumps(
            {
                "benchmark": f"bytes to committed requests, {name}",
                "value": round(total / cpu_s),
                "unit": "spans per CPU-second",
                "wanted": 40_000,
                "peer": "decode and store alone, nothing derived",
                "ratio": round(raw_cpu_s / cpu_s, 3),
                "protobuf_parse_ratio": round(parse_cpu_s / cpu_s, 4),
                "us_per_span": {
                    "decode": round((cpu_s - adding_s - deriving_s) / total * 1e6, 1),
                    "identify and store raw": round(adding_s / total * 1e6, 1),
                    "derive and replace": round(deriving_s / total * 1e6, 1),
                },
                "spans": total,
                "requests": requests,
            }
        )
    )


if __name__ == "__main__":
    main()
