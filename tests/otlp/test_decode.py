"""What the decoders keep and reject, span by span, in protobuf and JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from pdtrace.otlp.decode import decode
from pdtrace.otlp.faults import DAY_NS, Undecodable

START_NS = 1_796_074_641_000_000_000
GOOD = {
    "trace_id": bytes(range(16)),
    "span_id": bytes(range(1, 9)),
    "name": "decode",
    "start_time_unix_nano": START_NS,
    "end_time_unix_nano": START_NS + 5,
}


def traces(body: bytes, *, encoding: Any = "protobuf", received_ns: int = START_NS, vectorised: bool = True) -> Any:
    return decode("traces", body, encoding=encoding, received_ns=received_ns, where="test", vectorised=vectorised)


@pytest.fixture(params=[True, False], ids=["arrow", "plain"])
def vectorised(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"trace_id": b"short"}, "trace_id must be 16 bytes"),
        ({"trace_id": b""}, "trace_id must be 16 bytes"),
        ({"trace_id": bytes(16)}, "trace_id must not be all zeros"),
        ({"span_id": bytes(range(9))}, "span_id must be 8 bytes"),
        ({"span_id": bytes(8)}, "span_id must not be all zeros"),
        ({"start_time_unix_nano": 0}, "start time must be set"),
        ({"start_time_unix_nano": 2**63}, "below 2**63"),
        ({"end_time_unix_nano": 2**64 - 1}, "below 2**63"),
        ({"start_time_unix_nano": START_NS + DAY_NS + 1}, "more than a day after the receive time"),
    ],
)
def test_a_bad_span_is_rejected_and_the_rest_kept(fields: dict[str, Any], reason: str, vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add().scope_spans.add()
    scope_spans.spans.add(**GOOD)
    scope_spans.spans.add(**(GOOD | {"name": "broken"} | fields))
    scope_spans.spans.add(**(GOOD | {"span_id": b"12345678"}))
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    assert [span.span_id for span in batch.spans] == ["0102030405060708", b"12345678".hex()]
    (rejection,) = batch.rejections
    assert (rejection.what, rejection.where, rejection.count) == ("span", "test", 1)
    assert reason in rejection.reason
    assert "broken" in rejection.reason


def test_what_is_odd_but_legal_is_kept_as_it_came(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    scope_spans = request.resource_spans.add().scope_spans.add()
    scope_spans.spans.add(**(GOOD | {"end_time_unix_nano": START_NS - 7}))  # ends before it starts
    scope_spans.spans.add(**(GOOD | {"end_time_unix_nano": 0, "name": ""}))  # still open, no name
    scope_spans.spans.add(**(GOOD | {"parent_span_id": bytes(8), "kind": 77}))  # zero parent is a root; open enum
    scope_spans.spans.add(**(GOOD | {"start_time_unix_nano": START_NS + DAY_NS}))
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    assert batch.rejections == []
    assert [span.end_ns - START_NS for span in batch.spans] == [-7, -START_NS, 5, 5]
    assert (batch.spans[1].name, batch.spans[2].parent_id, batch.spans[2].kind) == ("", "", 77)


def test_a_parent_of_wrong_length_makes_a_root_and_is_counted(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().spans.add(**GOOD, parent_span_id=b"abc")
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    assert batch.spans[0].parent_id == ""
    assert [(r.what, r.count) for r in batch.rejections] == [("parent", 1)]


def test_all_kinds_of_values_and_the_last_of_equal_keys(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="service.name").value.string_value = "d0"
    span = resource_spans.scope_spans.add().spans.add(**GOOD)
    for key, kind, value in (
        ("empty", "string_value", ""),
        ("zero", "int_value", 0),
        ("low", "int_value", -(2**63)),
        ("no", "bool_value", False),
        ("x", "double_value", 0.5),
        ("raw", "bytes_value", b"\x00\xff"),
        ("twice", "int_value", 1),
        ("twice", "string_value", "second"),
    ):
        setattr(span.attributes.add(key=key).value, kind, value)
    span.attributes.add(key="nothing")
    span.attributes.add(key="blocks").value.array_value.values.add().int_value = 7
    inner = span.attributes.add(key="map").value.kvlist_value.values.add(key="k")
    inner.value.array_value.values.add().string_value = "deep"
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    assert batch.spans[0].attributes == {
        "empty": "", "zero": 0, "low": -(2**63), "no": False, "x": 0.5, "raw": b"\x00\xff", "twice": "second",
        "nothing": None, "blocks": [7], "map": {"k": ["deep"]},
    }  # fmt: skip
    assert batch.spans[0].resource == {"service.name": "d0"}


def test_spans_of_one_resource_share_its_dict(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    for name in ("p0", "d0"):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.add(key="service.name").value.string_value = name
        for _ in range(2):
            scope_spans = resource_spans.scope_spans.add()
            scope_spans.scope.name = f"scope-{name}"
            scope_spans.spans.add(**GOOD)
        resource_spans.scope_spans.add()  # an envelope without spans
    request.resource_spans.add()
    spans = traces(request.SerializeToString(), vectorised=vectorised).spans
    assert [(s.resource["service.name"], s.scope) for s in spans] == [
        ("p0", "scope-p0"), ("p0", "scope-p0"), ("d0", "scope-d0"), ("d0", "scope-d0"),
    ]  # fmt: skip
    assert spans[0].resource is spans[1].resource
    assert spans[1].resource is not spans[2].resource


def test_events_and_links_with_faults_of_their_own(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(**GOOD)
    span.events.add(time_unix_nano=START_NS, name="first").attributes.add(key="n").value.int_value = 3
    span.events.add(time_unix_nano=2**63, name="broken")
    span.links.add(trace_id=bytes(range(16)), span_id=b"12345678")
    span.links.add(trace_id=b"", span_id=b"12345678")
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    assert [(e.time_ns, e.name, e.attributes) for e in batch.spans[0].events] == [(START_NS, "first", {"n": 3})]
    assert batch.spans[0].links == [(bytes(range(16)).hex(), b"12345678".hex())]
    assert sorted((r.what, r.count) for r in batch.rejections) == [("event", 1), ("link", 1)]


def test_a_huge_attribute_is_cut_between_characters_and_counted(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(**GOOD)
    span.attributes.add(key="prompt").value.string_value = "a" + "é" * 5_000_000  # 10 MB
    span.attributes.add(key="small").value.string_value = "kept"
    batch = traces(request.SerializeToString(), vectorised=vectorised)
    cut = batch.spans[0].attributes["prompt"]
    assert cut == "a" + "é" * 32_767  # 65,535 bytes: the next character would end at 65,537
    assert batch.spans[0].attributes["small"] == "kept"
    assert [(r.what, r.count) for r in batch.rejections] == [("attribute", 1)]
    assert "prompt" in batch.rejections[0].reason


def _nested(levels: int) -> AnyValue:
    value = AnyValue(int_value=1)
    for _ in range(levels):
        outer = AnyValue()
        outer.array_value.values.append(value)
        value = outer
    return value


def test_nesting_is_bounded_and_what_is_deeper_is_marked(vectorised: bool) -> None:
    body = _nested(40).SerializeToString()
    # protobuf itself refuses to build deeper ones, so wrap the serialised form by hand: 5,000 levels.
    for _ in range(5_000):
        array = b"\x0a" + _varint(len(body)) + body
        body = b"\x2a" + _varint(len(array)) + array
    span = ExportTraceServiceRequest().resource_spans.add().scope_spans.add().spans.add(**GOOD)
    key_value = b"\x0a\x04deep\x12" + _varint(len(body)) + body
    wire = _wrap(_wrap(_wrap(span.SerializeToString() + b"\x4a" + _varint(len(key_value)) + key_value, 2), 2), 1)
    batch = traces(wire, vectorised=vectorised)
    value, depth = batch.spans[0].attributes["deep"], 0
    while isinstance(value, list):
        value, depth = value[0], depth + 1
    assert (value, depth) == ("<nested deeper than pdtrace keeps>", 64)
    assert [(r.what, r.count) for r in batch.rejections] == [("attribute", 1)]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _wrap(message: bytes, field: int) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(message)) + message


def test_invalid_utf8_costs_its_own_span_only(vectorised: bool) -> None:
    request = ExportTraceServiceRequest()
    for resource in ("fine", "BROKEN"):
        resource_spans = request.resource_spans.add()
        resource_spans.resource.attributes.add(key="service.name").value.string_value = resource
        scope_spans = resource_spans.scope_spans.add()
        for name in ("good", "UNSOUND", "good"):
            scope_spans.spans.add(**(GOOD | {"name": name}))
    body = request.SerializeToString().replace(b"UNSOUND", b"UNS\xffUND").replace(b"BROKEN", b"BR\xc3KEN")
    batch = traces(body, vectorised=vectorised)
    assert [(s.name, s.resource) for s in batch.spans] == [("good", {"service.name": "fine"})] * 2
    assert [(r.what, r.count) for r in batch.rejections] == [("span", 4)]


@pytest.mark.parametrize("body", [b"\xff" * 40, b"\x0a\x50short", b"hello world", b"{}"], ids=repr)
def test_an_undecodable_body_is_refused_with_a_sentence(body: bytes, vectorised: bool) -> None:
    with pytest.raises(Undecodable, match="not a protobuf ExportTraceServiceRequest"):
        traces(body, vectorised=vectorised)


def test_an_empty_request_is_fine(vectorised: bool) -> None:
    for encoding, body in (("protobuf", b""), ("json", b"{}"), ("json", b'{"resourceSpans":[]}')):
        batch = traces(body, encoding=encoding, vectorised=vectorised)
        assert (batch.spans, batch.rejections) == ([], [])


def span_json(**fields: Any) -> bytes:
    span = {
        "traceId": "0AF7651916CD43DD8448EB211C80319C",
        "spanId": "b7ad6b7169203331",
        "name": "x",
        "startTimeUnixNano": str(START_NS),
        "endTimeUnixNano": START_NS + 5,
    }
    spans = [span, span | fields]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def test_json_ids_in_either_case_and_integers_as_strings_or_numbers() -> None:
    batch = traces(span_json(kind="SPAN_KIND_SERVER", status={"code": 2}, unknownField=[1]), encoding="json")
    first, second = batch.spans
    assert first.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert (first.start_ns, first.end_ns) == (START_NS, START_NS + 5)
    assert (second.kind, second.status) == (2, 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"traceId": "CvdlGRbNQ92ESOshHIAxnA=="}, "ids must be hex digits"),
        ({"traceId": 17}, "ids must be strings of hex digits"),
        ({"traceId": ""}, "trace_id must be 16 bytes"),
        ({"spanId": "zz"}, "ids must be hex digits"),
        ({"startTimeUnixNano": "-5"}, "must not be negative"),
        ({"startTimeUnixNano": "soon"}, "integers must be numbers or decimal strings"),
        ({"startTimeUnixNano": str(2**70)}, "below 2**63"),
        ({"endTimeUnixNano": -1}, "must not be negative"),
        ({"kind": "SPAN_KIND_OTHER"}, "integers must be numbers"),
        ({"attributes": [{"key": "b", "value": {"bytesValue": "!!"}}]}, "bytesValue must be base64"),
    ],
)
def test_a_bad_json_span_is_rejected_and_the_rest_kept(fields: dict[str, Any], reason: str) -> None:
    batch = traces(span_json(**fields), encoding="json")
    assert len(batch.spans) == 1
    assert [(r.what, r.count) for r in batch.rejections] == [("span", 1)]
    assert reason in batch.rejections[0].reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (span_json(attributes=[{"key": "k", "value": {"intValue": str(2**63)}}]), "must fit in 64 bits"),
        (span_json(attributes=[{"key": "k", "value": {"intValue": 10**30}}]), "k|int"),
        (span_json(attributes=[{"key": "k", "value": {"intValue": "many"}}]), "must be an integer"),
        (span_json(attributes=5), r"\$\.resourceSpans"),
        (span_json(name=5), r"\$\.resourceSpans"),
        (b'{"resourceSpans":', "not OTLP-JSON"),
        (b"[1]", "not OTLP-JSON"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":NaN}]}]}]}', "not OTLP-JSON"),
        (b'{"resourceSpans":"\xff"}', "not OTLP-JSON"),
        (b'{"resourceSpans":' + b"[" * 100_000, "not OTLP-JSON|nested"),
    ],
)
def test_json_of_the_wrong_shape_is_refused_with_the_place(body: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason):
        traces(body, encoding="json")


def test_json_values() -> None:
    attributes = [
        {"key": "nan", "value": {"doubleValue": "NaN"}},
        {"key": "inf", "value": {"doubleValue": "-Infinity"}},
        {"key": "whole", "value": {"doubleValue": 3}},
        {"key": "raw", "value": {"bytesValue": "AP8="}},
        {"key": "list", "value": {"arrayValue": {"values": [{"intValue": "1"}, {"boolValue": False}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": ""}}]}}},
        {"key": "none", "value": {}},
        {"key": "null", "value": None},
    ]
    values = traces(span_json(attributes=attributes), encoding="json").spans[1].attributes
    assert str(values.pop("nan")) == "nan"
    assert values == {
        "inf": float("-inf"), "whole": 3.0, "raw": b"\x00\xff", "list": [1, False], "map": {"k": ""},
        "none": None, "null": None,
    }  # fmt: skip


def test_json_nesting_is_bounded() -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(80):
        value = {"arrayValue": {"values": [value]}}
    batch = traces(span_json(attributes=[{"key": "deep", "value": value}]), encoding="json")
    found, depth = batch.spans[1].attributes["deep"], 0
    while isinstance(found, list):
        found, depth = found[0], depth + 1
    assert (found, depth) == ("<nested deeper than pdtrace keeps>", 64)


def test_logs_keep_body_event_name_and_context() -> None:
    request = ExportLogsServiceRequest()
    scope_logs = request.resource_logs.add().scope_logs.add()
    scope_logs.scope.name = "engine"
    record = scope_logs.log_records.add(
        observed_time_unix_nano=START_NS, severity_number=17, event_name="e", trace_id=bytes(range(16)), span_id=b"bad"
    )
    record.body.string_value = "x" * 100_000  # logs keep more than spans: whole request traces come in them
    scope_logs.log_records.add(time_unix_nano=2**63)
    batch = decode("logs", request.SerializeToString(), encoding="protobuf", received_ns=9, where="test")
    (log,) = batch.logs
    assert (log.time_ns, log.severity, log.event_name, log.scope) == (START_NS, "ERROR", "e", "engine")
    assert (log.trace_id, log.span_id, log.received_ns) == (bytes(range(16)).hex(), "", 9)
    assert log.body == "x" * 100_000
    assert sorted((r.what, r.count) for r in batch.rejections) == [("attribute", 1), ("log", 1)]


def _metrics() -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metrics = request.resource_metrics.add().scope_metrics.add().metrics
    gauge = metrics.add(name="queue", unit="1").gauge
    gauge.data_points.add(time_unix_nano=START_NS, as_int=0)
    gauge.data_points.add(time_unix_nano=START_NS, as_double=0.5)
    gauge.data_points.add(time_unix_nano=START_NS, flags=1)
    gauge.data_points.add(as_int=4)
    total = metrics.add(name="tokens").sum
    total.aggregation_temporality = 2
    total.is_monotonic = True
    total.data_points.add(time_unix_nano=START_NS, start_time_unix_nano=START_NS - 1, as_int=2**40)
    ttft = metrics.add(name="ttft").histogram
    ttft.aggregation_temporality = 1
    ttft.data_points.add(time_unix_nano=START_NS, count=3, sum=1.5, bucket_counts=[1, 2], explicit_bounds=[0.5])
    ttft.data_points.add(time_unix_nano=START_NS, count=3, bucket_counts=[1, 2, 3], explicit_bounds=[0.5])
    exponential = metrics.add(name="itl").exponential_histogram
    point = exponential.data_points.add(time_unix_nano=START_NS, count=3, scale=2, zero_count=1)
    point.positive.offset = -4
    point.positive.bucket_counts.extend([1, 1])
    quantiles = metrics.add(name="old").summary
    quantiles.data_points.add(time_unix_nano=START_NS, count=2, sum=4).quantile_values.add(quantile=0.5, value=2)
    metrics.add(name="no data")
    return request


def test_metrics_of_every_kind() -> None:
    batch = decode("metrics", _metrics().SerializeToString(), encoding="protobuf", received_ns=9, where="test")
    queue = [p for p in batch.points if p.name == "queue"]
    assert [p.value for p in queue] == [0, 0.5, None]
    by_name = {p.name: p for p in batch.points}
    assert (by_name["tokens"].value, by_name["tokens"].temporality, by_name["tokens"].monotonic) == (2**40, 2, True)
    assert by_name["ttft"].distribution == {
        "count": 3, "sum": 1.5, "min": None, "max": None, "bounds": [0.5], "buckets": [1, 2],
    }  # fmt: skip
    assert by_name["ttft"].temporality == 1
    itl = by_name["itl"].distribution
    assert itl is not None
    assert (itl["scale"], itl["zero_count"], itl["positive_offset"], itl["positive_buckets"]) == (2, 1, -4, [1, 1])
    assert (itl["sum"], itl["negative_buckets"]) == (None, [])
    assert by_name["old"].distribution == {"count": 2, "sum": 4.0, "quantiles": [[0.5, 2.0]]}
    assert sum(r.count for r in batch.rejections if r.what == "point") == 2


def test_metrics_in_json_are_the_same() -> None:
    from google.protobuf.json_format import MessageToJson

    request = _metrics()  # no ids in it, so google's mapping is OTLP's
    from_json = decode("metrics", MessageToJson(request).encode(), encoding="json", received_ns=9, where="test")
    from_protobuf = decode("metrics", request.SerializeToString(), encoding="protobuf", received_ns=9, where="test")
    facts = [
        [(p.name, p.kind, p.value, p.distribution, p.time_ns) for p in b.points] for b in (from_json, from_protobuf)
    ]
    assert facts[0] == facts[1]
    assert [(r.reason, r.count) for r in from_json.rejections] == [
        (r.reason, r.count) for r in from_protobuf.rejections
    ]
