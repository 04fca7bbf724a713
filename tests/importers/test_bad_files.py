"""Damaged, odd and hostile files: what is bad is counted with its place, the rest loads."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.internal.encoder import _VarintBytes  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.importers import FileImport, read_path
from pdtrace.model import Batch

START_NS = 1_796_074_641_000_000_000


def line(name: str = "n", **fields: Any) -> str:
    span = {"traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "name": name}
    span |= {"startTimeUnixNano": str(START_NS), "endTimeUnixNano": str(START_NS + 1)}
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span | fields]}]}]})


def load(path: Path) -> Batch:
    whole = Batch()
    for batch in read_path(path):
        whole.spans += batch.spans
        whole.records += batch.records
        whole.logs += batch.logs
        whole.points += batch.points
        whole.rejections += batch.rejections
    return whole


def request(name: str = "n") -> bytes:
    message = ExportTraceServiceRequest()
    message.resource_spans.add().scope_spans.add().spans.add(
        trace_id=bytes(range(16)), span_id=b"12345678", name=name, start_time_unix_nano=START_NS
    )
    return message.SerializeToString()


def framed(*messages: bytes) -> bytes:
    return b"".join(_VarintBytes(len(message)) + message for message in messages)


def test_bad_lines_are_counted_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [line("a")[:-9], "", line("b"), "no json", '{"other": 1}', line("c", traceId="xyz"), "{}", line("d")]
    path.write_text("\n".join(lines))
    batch = load(path)
    assert [span.name for span in batch.spans] == ["b", "d"]
    assert [(r.what, r.where.rpartition(":")[2], r.count) for r in batch.rejections] == [
        ("line", "1", 1), ("line", "4", 1), ("line", "5", 1), ("span", "6", 1),
    ]  # fmt: skip
    assert all(r.where.startswith(f"{path}:") for r in batch.rejections)
    assert "resourceSpans" in batch.rejections[2].reason


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{line('a')}\r\n{line('b')}\r\n".encode())
    batch = load(path)
    assert ([span.name for span in batch.spans], batch.rejections) == (["a", "b"], [])


@pytest.mark.parametrize("indent", [None, 2])
def test_one_whole_document(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(json.loads(line("a")), indent=indent))
    assert [span.name for span in load(path).spans] == ["a"]


def test_a_list_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([json.loads(line("a")), json.loads(line("b")), 7], indent=1))
    batch = load(path)
    assert [span.name for span in batch.spans] == ["a", "b"]
    assert [r.where for r in batch.rejections] == [f"{path}:3"]


def test_a_truncated_gzip_keeps_what_could_be_read_and_says_so_once(tmp_path: Path) -> None:
    rng = os.urandom
    lines = [line("a", attributes=[{"key": "k", "value": {"stringValue": rng(300).hex()}}]) for _ in range(400)]
    packed = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(packed[: len(packed) * 3 // 4])
    batch = load(path)
    assert 200 < len(batch.spans) < 400
    assert [r.what for r in batch.rejections] in (["file"], ["line", "file"])
    assert "truncated" in batch.rejections[-1].reason


def test_a_damaged_gzip(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress("\n".join(line(os.urandom(200).hex()) for _ in range(2000)).encode()))
    packed[len(packed) // 2] ^= 0xFF
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(packed)
    batch = load(path)
    assert batch.spans
    assert any(r.what == "file" and ("damaged" in r.reason or "truncated" in r.reason) for r in batch.rejections)


def test_a_truncated_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(framed(request("a"), request("b"), request("c"))[:-4])
    batch = load(path)
    assert [span.name for span in batch.spans] == ["a", "b"]
    assert [(r.what, r.where) for r in batch.rejections] == [("request", f"{path}:3")]
    assert "ends inside this message" in batch.rejections[0].reason
    packed = tmp_path / "t.bin.gz"
    packed.write_bytes(gzip.compress(framed(request("a"), request("b" * 5000)))[:-40])
    batch = load(packed)
    assert [(r.what, "truncated" in r.reason) for r in batch.rejections] == [("file", True)]


def test_a_corrupt_message_costs_itself_and_a_corrupt_length_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(framed(request("a"), b"\x0a\xff\xff\xff", request("b")) + b"\xff" * 12 + framed(request("lost")))
    batch = load(path)
    assert [span.name for span in batch.spans] == ["a", "b"]
    assert [(r.what, r.where) for r in batch.rejections] == [("request", f"{path}:2"), ("request", f"{path}:4")]


def test_logs_and_metrics_in_frames_are_told_from_spans(tmp_path: Path) -> None:
    logs = ExportLogsServiceRequest()
    record = logs.resource_logs.add().scope_logs.add().log_records.add(observed_time_unix_nano=START_NS)
    record.body.string_value = "hello"
    metrics = ExportMetricsServiceRequest()
    point = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="queue").gauge.data_points.add()
    point.time_unix_nano, point.as_int = START_NS, 3
    empty = ExportTraceServiceRequest(resource_spans=[{}]).SerializeToString()
    for message in (logs, metrics):
        path = tmp_path / "x.bin"
        path.write_bytes(framed(empty, message.SerializeToString(), message.SerializeToString()))
        batch = load(path)
        assert (len(batch.logs), len(batch.points)) == ((2, 0) if message is logs else (0, 2))
        assert (batch.spans, batch.rejections) == ([], [])


def test_folders_are_walked_in_order_and_what_is_left_out_is_told(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "t.jsonl").write_text(line("second"))
    (tmp_path / "a.jsonl").write_text(line("first"))
    (tmp_path / "ground_truth.json").write_text(line("never"))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "image.bin").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    source = FileImport(tmp_path)
    spans = [span.name for batch in source.batches() for span in batch.spans]
    assert spans == ["first", "second"]
    reasons = {Path(path).name: reason for path, reason in source.skipped.items()}
    assert reasons.keys() == {"ground_truth.json", "empty.jsonl", "image.bin", "gone"}
    assert "ground truth" in reasons["ground_truth.json"]
    assert reasons["empty.jsonl"] == "the file is empty"
    assert "binary content" in reasons["image.bin"]


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_path(tmp_path / "nothing.jsonl"))


def test_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(gzip.compress(f"{line('a')}\nbad\n".encode()))

    monkeypatch.setattr("sys.stdin", Stdin)
    (batch,) = read_path("-")
    assert [span.name for span in batch.spans] == ["a"]
    assert [r.where for r in batch.rejections] == ["stdin:2"]


def test_large_files_come_in_chunks(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([line()] * 12_000))
    sizes = [len(batch.spans) for batch in read_path(path)]
    assert sum(sizes) == 12_000
    assert max(sizes) <= 5_000


def test_an_over_long_line_is_left_out_and_the_next_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdtrace.importers.readers.LINE_LIMIT_BYTES", 1000)
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([line("a"), line("b" * 5000), line("c")]))
    batch = load(path)
    assert [span.name for span in batch.spans] == ["a", "c"]
    assert [(r.what, r.where) for r in batch.rejections] == [("line", f"{path}:2")]


def test_old_recordings_are_read_and_stamps_of_the_next_century_are_not(tmp_path: Path) -> None:
    """Files carry no receive time: they are compared with this machine's clock, with ten years of room."""
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join([line("old", startTimeUnixNano="1"), line("far", startTimeUnixNano=str(2**62))]))
    batch = load(path)
    assert [span.name for span in batch.spans] == ["old"]
    assert [(r.what, r.count) for r in batch.rejections] == [("span", 1)]


def test_records_with_bad_identity_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    good = {"metadata": {"session_num": 3, "turn_index": 1, "request_start_ns": START_NS}, "metrics": {}}
    path.write_text("\n".join(map(json.dumps, [good, {"metadata": {}, "metrics": {}}, [1], {"metrics": {}}])) + "\n{")
    batch = load(path)
    assert [(r.key, r.time_ns) for r in batch.records] == [("3-1", START_NS)]
    assert [r.what for r in batch.rejections] == ["record", "record", "record", "line"]


def test_perf_metrics_as_lines_one_object_or_a_list(tmp_path: Path) -> None:
    worker = {"request_id": 5, "disagg_request_id": 77, "perf_metrics": {"timing_metrics": {"arrival_time": 1.5}}}
    proxy = {"disagg_server_arrival_time": 1.0, "disagg_server_first_token_time": 2.0}
    keys = []
    for name, text in (
        ("lines.jsonl", "\n".join(map(json.dumps, (worker, proxy)))),
        ("list.json", json.dumps([worker, proxy], indent=2)),
    ):
        path = tmp_path / name
        path.write_text(text)
        batch = load(path)
        assert batch.rejections == []
        keys.append([record.key for record in batch.records])
    assert keys[0] == keys[1]
    assert keys[0][0].startswith("77:")
    (tmp_path / "one.json").write_text(json.dumps(worker, indent=2))
    assert [record.key for record in load(tmp_path / "one.json").records] == keys[0][:1]
