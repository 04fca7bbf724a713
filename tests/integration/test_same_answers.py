"""The same spans in any order, split anywhere, twice, over gRPC, HTTP or from files: equal answers."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from pdtrace.importers import FileImport
from pdtrace.model import Batch
from pdtrace.pipeline import Pipeline
from pdtrace.reader.contract import Filters
from pdtrace.reader.local import LocalReader
from pdtrace.store.duckdb import DuckDBStore
from tests.service.running import eventually, serve

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"
NAMES = (
    "dynamo-1.5.1/b2-pd-kv-events-bootstrap",
    "dynamo-1.5.1/d-pd-overload",
    "sglang/pd_e2e_router_plus_sglang",
    "sglang/pd_minilb_sglang055_rooms",
    "vllm-0.32/pd_nixl_contended",
    "vllm-0.32/pd_vllm_router",
    "vllm-0.32/agg_lmcache",
)
pytestmark = pytest.mark.skipif(
    not CAPTURES.exists(), reason="the captures (shared/captures) are not beside this checkout"
)

Row = dict[str, Any]


def answers(reader: Any) -> list[Row]:
    """What every user of the command line would see, without receive times (they differ by design)."""
    rows = reader.requests(Filters(), order_by="t0")
    full = [row for uid in sorted(row["uid"] for row in rows) for row in reader.request(uid)]
    return [{key: value for key, value in row.items() if key != "received_ns"} for row in full]


def at_once(batch: Batch) -> list[Row]:
    store = DuckDBStore(":memory:")
    pipeline = Pipeline(store)
    pipeline.add(Batch(spans=list(batch.spans), records=list(batch.records), logs=list(batch.logs)))
    pipeline.derive()
    return answers(LocalReader(store))


def capture(name: str) -> Batch:
    whole = Batch()
    for path in sorted((CAPTURES / name).iterdir()):
        if path.name.startswith(("traces.otlp.jsonl", "request_trace", "logs.otlp")):
            for batch in FileImport(path).batches():
                whole.spans += batch.spans
                whole.records += batch.records
                whole.logs += batch.logs
    return whole


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "a new process for every piece"])
def test_any_order_split_and_repetition(name: str, restarts: bool) -> None:
    batch = capture(name)
    expected = at_once(batch)
    shuffle = random.Random(name)
    pieces: list[Any] = [("spans", s) for s in batch.spans] + [("records", r) for r in batch.records]
    pieces += [("logs", log) for log in batch.logs]
    pieces += shuffle.sample(pieces, len(pieces) // 5)  # a fifth arrives twice
    shuffle.shuffle(pieces)
    store = DuckDBStore(":memory:")
    pipeline = Pipeline(store)
    size = max(1, len(pieces) // 6)
    for first in range(0, len(pieces), size):
        part = Batch()
        for kind, item in pieces[first : first + size]:
            getattr(part, kind).append(item)
        pipeline.add(part)
        pipeline.derive()
        if restarts:
            pipeline = Pipeline(store)
    assert answers(LocalReader(store)) == expected


def test_memory_that_holds_almost_nothing_changes_no_answer() -> None:
    batch = capture("sglang/pd_e2e_router_plus_sglang")
    expected = at_once(batch)
    store = DuckDBStore(":memory:")
    pipeline = Pipeline(store, most_spans_in_memory=50)
    for first in range(0, len(batch.spans), 100):
        pipeline.add(Batch(spans=batch.spans[first : first + 100]))
        pipeline.derive()
    assert answers(LocalReader(store)) == expected


def test_rederive_gives_what_derive_gave() -> None:
    store = DuckDBStore(":memory:")
    Pipeline(store).add(capture("vllm-0.32/pd_nixl_contended"))
    pipeline = Pipeline(store)
    count = pipeline.rederive()
    assert count == 44
    assert answers(LocalReader(store)) == at_once(capture("vllm-0.32/pd_nixl_contended"))


# ------------------------------------------------------------------------------------------------------- transports


def exports(name: str) -> Iterator[tuple[bytes, bytes]]:
    """(protobuf, OTLP-JSON) of every export request of a capture, the protobuf made from the JSON by the official
    schema (ids are hex in OTLP-JSON, which the generic JSON mapping would read as base64)."""
    with gzip.open(CAPTURES / name / "traces.otlp.jsonl.gz") as lines:
        for line in lines:
            yield _protobuf(json.loads(line)).SerializeToString(), line


def _protobuf(document: Row) -> ExportTraceServiceRequest:
    import base64

    from google.protobuf.json_format import ParseDict

    def to_base64(hex_id: str) -> str:
        return base64.b64encode(bytes.fromhex(hex_id)).decode()

    for resource_spans in document["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                for holder in (span, *span.get("links", [])):
                    for field in ("traceId", "spanId", "parentSpanId"):
                        if holder.get(field):
                            holder[field] = to_base64(holder[field])
    return ParseDict(document, ExportTraceServiceRequest(), ignore_unknown_fields=True)


def _halves(body: bytes) -> Iterable[bytes]:
    """An export request split in two in the middle of its spans."""
    whole = ExportTraceServiceRequest.FromString(body)
    spans = [(rs, ss, span) for rs in whole.resource_spans for ss in rs.scope_spans for span in ss.spans]
    for part in (spans[: len(spans) // 2], spans[len(spans) // 2 :]):
        half = ExportTraceServiceRequest()
        for resource_spans, scope_spans, span in part:
            home: ResourceSpans = half.resource_spans.add()
            home.resource.CopyFrom(resource_spans.resource)
            inner = home.scope_spans.add()
            inner.scope.CopyFrom(scope_spans.scope)
            inner.spans.add().CopyFrom(span)
        yield half.SerializeToString()


@pytest.mark.parametrize("transport", ["grpc", "http protobuf", "http json gzip"])
def test_every_transport_gives_the_answer_of_the_file(transport: str, tmp_path: Path) -> None:
    name = "vllm-0.32/pd_vllm_router"
    expected = at_once(Batch(spans=capture(name).spans))
    with serve(tmp_path / "live.duckdb") as running:
        if transport == "grpc":
            with grpc.insecure_channel(running.grpc.removeprefix("http://")) as channel:
                for body, _ in exports(name):
                    for half in _halves(body):
                        TraceServiceStub(channel).Export(ExportTraceServiceRequest.FromString(half), timeout=30)
        for body, text in exports(name):
            if transport == "http protobuf":
                assert running.send(body).status_code == 200
            elif transport == "http json gzip":
                headers = {"content-type": "application/json", "content-encoding": "gzip"}
                url = f"{running.http}/v1/traces"
                assert httpx.post(url, content=gzip.compress(text), headers=headers, timeout=30).status_code == 200
        rows = eventually(lambda: running.requests(limit=500), lambda got: len(got) == len(expected), 30)
        assert len(rows) == len(expected)
        running.stop()
    store = DuckDBStore(tmp_path / "live.duckdb", read_only=True)

    # A live service keeps what is open in flight until the quiet time; a file's end makes it unknown.
    def closed(rows: list[Row]) -> list[Row]:
        return [row for row in rows if row["outcome"] not in ("in_flight", "unknown")]

    assert closed(answers(LocalReader(store))) == closed(expected)
    store.close()
