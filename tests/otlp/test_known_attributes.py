"""Attributes are remembered by their bytes: what is read from memory must be what reading again would give."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.otlp import leaves
from pdtrace.otlp.decode import decode
from pdtrace.otlp.faults import Limits

START_NS = 1_796_074_641_000_000_000


@pytest.fixture(params=[True, False], ids=["arrow", "plain"])
def vectorised(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def body(values: list[dict[str, Any]], key: str = "k") -> bytes:
    """A request of one span per value."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number, value in enumerate(values, start=1):
        span = spans.add(
            trace_id=bytes(range(16)), span_id=number.to_bytes(8, "big"), name="s", start_time_unix_nano=START_NS
        )
        span.attributes.add(key=key, value=value)
    return request.SerializeToString()


def read(raw: bytes, vectorised: bool, limits: Limits | None = None) -> Any:
    return decode(
        "traces", raw, encoding="protobuf", received_ns=START_NS, where="t", limits=limits or Limits(),
        vectorised=vectorised,
    )  # fmt: skip


def test_equal_bytes_read_equal_and_types_stay_apart(vectorised: bool) -> None:
    values = [
        {"int_value": 1},
        {"bool_value": True},
        {"double_value": 1.0},
        {"string_value": "1"},
        {"bytes_value": b"1"},
    ]
    for _ in range(2):
        got = [span.attributes["k"] for span in read(body(values * 3), vectorised).spans]
        assert [(type(v), v) for v in got] == [(int, 1), (bool, True), (float, 1.0), (str, "1"), (bytes, b"1")] * 3


def test_a_list_is_nobody_elses(vectorised: bool) -> None:
    first, second = read(body([{"array_value": {"values": [{"int_value": 1}]}}] * 2), vectorised).spans
    first.attributes["k"].append(2)
    assert second.attributes["k"] == [1]


def test_a_cut_is_counted_each_time_whatever_other_limits_have_seen(vectorised: bool) -> None:
    raw = body([{"string_value": "x" * 100}] * 3)
    assert read(raw, vectorised).rejections == []
    for _ in range(2):
        batch = read(raw, vectorised, Limits(text_bytes=10))
        assert [span.attributes["k"] for span in batch.spans] == ["x" * 10] * 3
        assert [r.count for r in batch.rejections] == [3]
    assert read(raw, vectorised).spans[0].attributes["k"] == "x" * 100


def test_too_deep_is_counted_each_time(vectorised: bool) -> None:
    deep = {"array_value": {"values": [{"array_value": {"values": [{"int_value": 1}]}}]}}
    for _ in range(2):
        batch = read(body([deep] * 2), vectorised, Limits(depth=1))
        assert [span.attributes["k"] for span in batch.spans] == [[leaves.TOO_DEEP]] * 2
        assert [r.count for r in batch.rejections] == [2]


def test_memory_is_bounded(vectorised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves, "_MOST_KNOWN", 10)
    got = [span.attributes["k"] for span in read(body([{"int_value": n} for n in range(500)]), vectorised).spans]
    assert got == list(range(500))
    assert len(leaves._of_thread.pairs) <= 10


def test_bad_utf8_in_an_attribute_costs_its_span_only(vectorised: bool) -> None:
    raw = body([{"string_value": "good-1"}, {"string_value": "wrong"}, {"string_value": "good-2"}])
    batch = read(raw.replace(b"wrong", b"\xff\xfe\xfd\xfc\xfb"), vectorised)
    assert [span.attributes["k"] for span in batch.spans] == ["good-1", "good-2"]
    assert [(r.what, r.count) for r in batch.rejections] == [("span", 1)]
