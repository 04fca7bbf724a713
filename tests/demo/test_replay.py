"""The demo retells recordings: other ids, stamps moved to now, everything else as it was."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pdtrace.demo.recording import TRACKS, Item, Recording, load
from pdtrace.demo.replay import Track
from pdtrace.demo.retell import Retelling
from pdtrace.demo.sender import log_requests, trace_requests

NOW_NS = 1_900_000_000_000_000_000
NAMES = [name for track in TRACKS for name in track]


@pytest.fixture(scope="module")
def recordings() -> dict[str, Recording]:
    return {name: load(name) for name in NAMES}


def spans_of(items: list[Item]) -> list[Span]:
    return [item.message for item in items if isinstance(item.message, Span)]


def play(recording: Recording, tag: str = "t", start_ns: int = NOW_NS) -> list[Item]:
    """One whole loop."""
    track = Track([recording], start_ns, tag)
    return list(track.due(start_ns + recording.end_ns - recording.start_ns))


def text_values(span: Span) -> dict[str, str]:
    return {a.key: a.value.string_value for a in span.attributes if a.value.WhichOneof("value") == "string_value"}


def test_recordings_hold_the_captured_counts(recordings: dict[str, Recording]) -> None:
    counts = {name: len(spans_of(list(r.items))) for name, r in recordings.items()}
    assert counts == {
        "dynamo-sequential": 1563,
        "dynamo-overlapped": 1570,
        "dynamo-overload": 1298,
        "vllm-router": 189,
        "vllm-nixl-contended": 78,
    }
    records = [i for i in recordings["dynamo-sequential"].items if isinstance(i.message, LogRecord)]
    assert len(records) == 103


@pytest.mark.parametrize("name", NAMES)
def test_a_loop_keeps_durations_and_the_tree(recordings: dict[str, Recording], name: str) -> None:
    recorded = spans_of(list(recordings[name].items))
    retold = spans_of(play(recordings[name]))
    shift = NOW_NS - recordings[name].start_ns
    assert len(retold) == len(recorded)
    new_id = {(a.trace_id, a.span_id): (b.trace_id, b.span_id) for a, b in zip(recorded, retold, strict=True)}
    assert len(set(new_id.values())) == len(recorded)
    for old, new in zip(recorded, retold, strict=True):
        assert new.start_time_unix_nano - old.start_time_unix_nano == shift
        assert new.end_time_unix_nano - old.end_time_unix_nano == shift
        assert [e.time_unix_nano for e in new.events] == [e.time_unix_nano + shift for e in old.events]
        assert new.trace_id != old.trace_id
        assert new.name == old.name
        parent = (old.trace_id, old.parent_span_id)
        if parent in new_id:
            assert (new.trace_id, new.parent_span_id) == new_id[parent]
    assert min(s.start_time_unix_nano for s in retold) == NOW_NS


@pytest.mark.parametrize("name", NAMES)
def test_no_recorded_id_or_stamp_survives(recordings: dict[str, Recording], name: str) -> None:
    recorded = list(recordings[name].items)
    old_ids = {s.trace_id.hex() for s in spans_of(recorded)} | {s.span_id.hex() for s in spans_of(recorded)}
    requests = {
        value
        for span in spans_of(recorded)
        for key, value in text_values(span).items()
        if key in ("request_id", "x_request_id", "gen_ai.request.id")
    }
    assert requests
    text = "\n".join(str(item.message) for item in play(recordings[name]))
    words = set(re.findall(r"[0-9A-Za-z_.:-]+", text))
    assert not words & (old_ids | requests)
    assert not re.search(r"(?<!\d)17960\d{14}(?!\d)|(?<!\d)17960\d{8}(?!\d)", text)


def test_request_ids_stay_joined(recordings: dict[str, Recording]) -> None:
    """vLLM's P and D share one engine request id; Dynamo's request trace is tied to its spans by the request id."""
    ids = Counter(text_values(s).get("gen_ai.request.id") for s in spans_of(play(recordings["vllm-nixl-contended"])))
    before = Counter(
        text_values(s).get("gen_ai.request.id") for s in spans_of(list(recordings["vllm-nixl-contended"].items))
    )
    assert sorted(ids.values()) == sorted(before.values())
    assert all(re.fullmatch(r"cmpl-cli-2\.t0-\d{4}-0", str(i)) for i in ids)

    loop = play(recordings["dynamo-sequential"])
    on_spans = {text_values(s).get("request_id") for s in spans_of(loop)}
    for item in loop:
        if isinstance(item.message, LogRecord):
            attributes = {a.key: a.value.string_value for a in item.message.attributes}
            payload = json.loads(attributes["payload"])
            assert payload["request"]["request_id"] == attributes["rid"]
            assert attributes["rid"] in on_spans
            assert abs(payload["event_time_unix_ms"] * 1_000_000 - item.message.time_unix_nano) < 2_000_000


def test_workers_keep_their_names(recordings: dict[str, Recording]) -> None:
    for name in ("dynamo-sequential", "dynamo-overlapped", "dynamo-overload"):
        workers = [
            {text_values(s).get("instance_id") for s in spans_of(x)}
            for x in (list(recordings[name].items), play(recordings[name]))
        ]
        assert workers[0] == workers[1]
        assert len(workers[0]) > 2


def test_tracks_loop_with_new_ids_and_never_early(recordings: dict[str, Recording]) -> None:
    recording = recordings["vllm-nixl-contended"]
    track = Track([recording], NOW_NS, "t")
    seen: list[Item] = []
    for second in range(0, 200, 5):
        now = NOW_NS + second * 1_000_000_000
        for item in track.due(now):
            assert item.ready_ns <= now
            assert item.ready_ns > now - 5_000_000_000
            seen.append(item)
    keys = [(s.trace_id, s.span_id) for s in spans_of(seen)]
    assert len(keys) == len(set(keys))
    assert len(keys) > 2 * 78


def test_only_numbers_that_are_times_of_the_recording_move() -> None:
    retelling = Retelling(1_796_074_635_000_000_000, 1_796_074_655_000_000_000, 1_000_000_000, "x")
    span = Span(name="s", trace_id=b"\x01" * 16, span_id=b"\x02" * 8)
    for key, number in (("at_ns", 1_796_074_640_000_000_000), ("at_ms", 1_796_074_640_000), ("tokens", 2120)):
        span.attributes.add(key=key).value.int_value = number
    span.attributes.add(key="worker").value.string_value = "1796074640123456"
    retold = {a.key: a.value for a in retelling.span(span).attributes}
    assert retold["at_ns"].int_value == 1_796_074_641_000_000_000
    assert retold["at_ms"].int_value == 1_796_074_641_000
    assert retold["tokens"].int_value == 2120
    assert retold["worker"].string_value == "1796074640123456"


def test_requests_are_grouped_as_an_exporter_would(recordings: dict[str, Recording]) -> None:
    items = play(recordings["dynamo-sequential"])
    requests = trace_requests(items)
    assert sum(count for _, count in requests) == 1563
    assert max(count for _, count in requests) <= 512
    assert all(len(request.resource_spans) == 1 for request, _ in requests)
    assert sum(count for _, count in log_requests(items)) == 103
