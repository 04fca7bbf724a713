"""Every capture and sample loads in full, with the counts that its recipe or a grep gives."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdtrace.importers import FileImport
from pdtrace.model import Batch, Span


def load(path: Path) -> Batch:
    """All of one path in one batch."""
    whole = Batch()
    for batch in FileImport(path).batches():
        whole.spans += batch.spans
        whole.records += batch.records
        whole.logs += batch.logs
        whole.points += batch.points
        whole.rejections += batch.rejections
    return whole


def facts(spans: list[Span]) -> list[Any]:
    return [tuple(getattr(span, field) for field in Span.__slots__) for span in spans]


def grep(path: Path, pattern: bytes) -> int:
    return len(re.findall(pattern, gzip.decompress(path.read_bytes())))


def test_dynamo_b_has_its_spans_and_traces(shared: Path) -> None:
    folder = shared / "captures" / "dynamo-1.5.1" / "b-pd-kv-events"
    lines = load(folder / "traces.otlp.jsonl.gz")
    assert len(lines.spans) == 1563
    assert len({span.trace_id for span in lines.spans}) == 112
    assert lines.rejections == []
    assert {span.received_ns for span in lines.spans} == {0}
    assert facts(load(folder / "traces.otlp.bin.gz").spans) == facts(lines.spans)


@pytest.mark.parametrize(
    ("scenario", "spans"),
    [("pd_e2e_router_plus_sglang", 2017), ("pd_router_only", 37), ("pd_minilb_sglang055_rooms", 668)],
)
def test_sglang_has_the_spans_of_its_recipe(shared: Path, scenario: str, spans: int) -> None:
    batch = load(shared / "captures" / "sglang" / scenario / "traces.otlp.jsonl.gz")
    assert (len(batch.spans), batch.rejections) == (spans, [])


def test_every_otlp_file_loads_whole(shared: Path) -> None:
    seen = 0
    for path in sorted((shared / "captures").rglob("*.otlp.jsonl.gz")):
        batch = load(path)
        assert batch.rejections == [], path
        # startTimeUnixNano is in every span and in no log; ids would count links too.
        assert len(batch.spans) == (grep(path, rb'"startTimeUnixNano"') if "traces" in path.name else 0), path
        assert len(batch.logs) == (grep(path, rb'"observedTimeUnixNano"') if "logs" in path.name else 0), path
        assert bool(batch.points) == ("metrics" in path.name), path
        seen += 1
    assert seen >= 20


def test_request_traces_name_request_and_time(shared: Path) -> None:
    path = shared / "captures" / "dynamo-1.5.1" / "b-pd-kv-events" / "request_trace.jsonl.gz"
    records = load(path).records
    assert len(records) == grep(path, rb"\n")
    assert {record.kind for record in records} == {"dynamo.request_trace"}
    first = records[0]
    assert (first.key, first.time_ns) == ("9e14d2ea-5b03-4572-b469-7ac2312c9e6b", 1_796_074_641_662_000_000)
    assert first.body["request"]["input_tokens"] == 1097


def test_documented_request_traces_without_wrapper(shared: Path) -> None:
    batch = load(shared / "data" / "dynamo" / "request_trace_v1_doc_samples.jsonl")
    assert [record.key for record in batch.records] == ["dynamo-request-id"] * 2
    (rejection,) = batch.rejections  # a tool call, which is no request
    assert (rejection.what, rejection.count) == ("record", 1)
    assert rejection.where.endswith("request_trace_v1_doc_samples.jsonl:3")
    assert "tool_end" in rejection.reason


def test_perf_metrics_have_the_key_that_the_dialect_gives(shared: Path) -> None:
    """Two places must agree: a file and a poll of the same entry are one record."""
    from pdtrace.dialects.trtllm_perf_metrics import perf_metrics_record

    for name in ("perf_metrics_readme_sample.json", "perf_metrics_testvalues_with_kv.json"):
        (record,) = load(shared / "data" / "trtllm" / name).records
        expected = perf_metrics_record(record.body)
        assert (record.kind, record.key, record.time_ns) == (expected.kind, expected.key, 0)


def test_request_traces_have_the_key_that_the_dialect_gives(shared: Path) -> None:
    from pdtrace.dialects.dynamo_request_trace import from_event

    path = shared / "captures" / "dynamo-1.5.1" / "smoke-http" / "request_trace.jsonl.gz"
    for record in load(path).records:
        expected = from_event(record.body)
        assert expected is not None
        assert (record.kind, record.key, record.time_ns) == (expected.kind, expected.key, expected.time_ns)


def test_client_results(shared: Path) -> None:
    aiperf = load(shared / "data" / "aiperf" / "profile_export_7c31f57.jsonl")
    assert Counter(record.kind for record in aiperf.records) == {"client.aiperf": 100}
    assert (aiperf.records[0].key, aiperf.records[0].time_ns) == (
        "c087da26-5552-4785-958a-cad75c7b22de",
        1_759_522_419_154_829_652,
    )
    (bench,) = load(shared / "captures" / "vllm-0.32" / "agg_bench" / "bench_serve.json.gz").records
    assert (bench.kind, bench.body["completed"], len(bench.body["ttfts"])) == ("client.vllm_bench", 40, 40)
    (guide,) = load(shared / "data" / "llm-d-benchmark" / "guidellm_report_v2.json").records
    assert (guide.kind, guide.time_ns // 10**9) == ("client.guidellm", 1_786_678_148)


def test_what_is_no_telemetry_is_skipped_with_a_reason(shared: Path) -> None:
    folder = shared / "captures" / "dynamo-1.5.1" / "b-pd-kv-events"
    source = FileImport(folder)
    kinds = Counter(record.kind for batch in source.batches() for record in batch.records)
    assert kinds == {"dynamo.request_trace": 103}
    names = {Path(path).name for path in source.skipped}
    assert {"client.jsonl.gz", "events.json", "recipe.json", "p0.end.prom.gz"} <= names
    assert not names & {"traces.otlp.jsonl.gz", "traces.otlp.bin.gz", "logs.otlp.jsonl.gz", "request_trace.jsonl.gz"}
    reasons = {Path(path).name: reason for path, reason in source.skipped.items()}
    assert "x_request_id, trace_id" in reasons["client.jsonl.gz"]
    assert "it reads OTLP" in reasons["p0.end.prom.gz"]


def _reframed(path: Path) -> Iterator[bytes]:
    data, at = gzip.decompress(path.read_bytes()), 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        yield size.to_bytes(4, "big") + data[at : at + size]
        at += size


def test_big_endian_frames_read_the_same(shared: Path, tmp_path: Path) -> None:
    source = shared / "captures" / "dynamo-1.5.1" / "b-pd-kv-events" / "traces.otlp.bin.gz"
    framed = tmp_path / "traces.otlp.bin"
    framed.write_bytes(b"".join(_reframed(source)))
    assert facts(load(framed).spans) == facts(load(source).spans)
