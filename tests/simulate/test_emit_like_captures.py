"""What the emitters write looks like what the engines wrote: names, types, scopes, kinds, parents, and nothing more."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.simulate.telling import OVERLAPPED, SEQUENTIAL, choose, draw, tell

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"
pytestmark = pytest.mark.skipif(
    not CAPTURES.exists(), reason="the captures (shared/captures) are not beside this checkout"
)

FAILED_ON_D = """
req           0 - 100
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0  prompt_tokens=1000 cached_tokens=640
route        61 - 62
decode_queue 63 - 68    @d0
handoff      68 - 80    @d0  side=destination src=p0 dst=d0 !transfer failed
"""
CANCELLED = """
req           0 - 70
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0  prompt_tokens=1000 cached_tokens=640
route        61 - 62
decode_queue 63 - 70    @d0
"""
REJECTED = """
req           0 - 4
"""


class Look(NamedTuple):
    """One span as a stranger to its values sees it."""

    name: str
    kind: int
    scope: str
    parent: str  #: name of the parent, "" if it is not among the spans
    flags: int
    attributes: frozenset[tuple[str, str]]  #: name, OTLP type
    resource: frozenset[tuple[str, str]]
    events: frozenset[str]
    linked: bool


def _plain(name: str) -> str:
    """A span or event name without the ids and numbers in it."""
    name = name.partition("\n")[0]
    name = re.sub(r"\(host:\w+ \| pid:\d+\)", "(host)", name)
    name = re.sub(r"Req (0x)?[0-9a-f]+", "Req", name)
    name = re.sub(r"\[TP \d\]", "[TP]", name)
    return re.sub(r"^(Streaming error|Service temporarily overloaded): .*", r"\1", name)


def _types(pairs: list[dict[str, Any]]) -> frozenset[tuple[str, str]]:
    return frozenset((pair["key"], next(iter(pair["value"]))) for pair in pairs)


_KINDS = {"SPAN_KIND_INTERNAL": 1, "SPAN_KIND_SERVER": 2, "SPAN_KIND_CLIENT": 3}


def _looks(requests: Iterator[dict[str, Any]]) -> list[Look]:
    spans, names = [], {}
    for request in requests:
        for of_resource in request["resourceSpans"]:
            for of_scope in of_resource["scopeSpans"]:
                for span in of_scope["spans"]:
                    names[span["traceId"], span["spanId"]] = _plain(span["name"])
                    spans.append((span, of_scope["scope"]["name"], of_resource["resource"]["attributes"]))
    return [
        Look(
            _plain(span["name"]),
            _KINDS.get(span.get("kind"), span.get("kind")),
            scope,
            names.get((span["traceId"], span.get("parentSpanId")), ""),
            int(span.get("flags", 0)),
            _types(span.get("attributes", [])),
            _types(resource),
            frozenset(_plain(event["name"]) for event in span.get("events", [])),
            bool(span.get("links")),
        )
        for span, scope, resource in spans
    ]


def captured(*names: str) -> dict[str, list[Look]]:
    """Looks by span name."""

    def requests() -> Iterator[dict[str, Any]]:
        for name in names:
            with gzip.open(CAPTURES / name / "traces.otlp.jsonl.gz", "rt") as lines:
                yield from (json.loads(line) for line in lines)

    by_name = defaultdict(list)
    for look in _looks(requests()):
        by_name[look.name].append(look)
    return by_name


def told(dialect: str) -> list[Look]:
    """Looks of every kind of story."""
    drawings = [(SEQUENTIAL, "ok", "sequential"), (OVERLAPPED, "ok", "overlapped")]
    drawings += [(FAILED_ON_D, "failed_handoff", "sequential"), (CANCELLED, "cancelled", "sequential")]
    drawings += [(REJECTED, "rejected", "sequential"), (REJECTED, "invalid", "sequential")]
    stories = []
    for number, (drawing, outcome, mode) in enumerate(drawings):
        story = draw(drawing, outcome=outcome, mode=mode, request_id=f"r{number}")
        stories.append(choose(story, "p0", 5.5) if outcome not in ("rejected", "invalid") else story)
    bodies = [body for _, body in tell(dialect, stories).bodies]
    return _looks(MessageToDict(ExportTraceServiceRequest.FromString(body)) for body in bodies)


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("dynamo", ["dynamo-1.5.1/b-pd-kv-events", "dynamo-1.5.1/b2-pd-kv-events-bootstrap", "dynamo-1.5.1/d-pd-overload"]),
        ("vllm", ["vllm-0.32/pd_vllm_router", "vllm-0.32/pd_nixl_contended"]),
        ("sglang", ["sglang/pd_e2e_router_plus_sglang"]),
    ],
)  # fmt: skip
def test_spans_look_like_the_captured_ones(dialect: str, names: list[str]) -> None:
    known = captured(*names)
    looks = told(dialect)
    assert looks
    for look in looks:
        alike = known.get(look.name)
        assert alike, f"no engine sends a span {look.name!r}"
        assert look.kind in {a.kind for a in alike}, look
        assert look.scope in {a.scope for a in alike}, look
        assert look.parent in {a.parent for a in alike}, look
        assert look.flags in {a.flags for a in alike}, look
        assert look.linked in {a.linked for a in alike}, look
        assert look.attributes <= frozenset().union(*(a.attributes for a in alike)) | _DESCRIBED, look
        assert look.resource <= frozenset().union(*(a.resource for a in alike)), look
        assert look.events <= frozenset().union(*(a.events for a in alike)) | _DESCRIBED_EVENTS, look
    # and what every captured span of a name carries, ours carry too, but for what belongs to a language's runtime
    for name in {look.name for look in looks}:
        always = frozenset.intersection(*(a.attributes for a in known[name]))
        always = {key for key, _ in always if not key.startswith(("code.", "thread."))}
        for look in looks:
            if look.name == name:
                assert always <= {key for key, _ in look.attributes} | _RUNTIME, (name, look)


#: In Dynamo's source and in captures of killed workers that are not kept here.
_DESCRIBED = frozenset((("error.type", "stringValue"),))
_DESCRIBED_EVENTS = frozenset(("route request failed",))
#: Facts of the captured runs that a simulation has no use for.
_RUNTIME = {"image_count", "video_count", "audio_count", "parent_id"}
#: What the gateway never comes to say to a caller that hung up.
_RUNTIME |= {"status_code", "latency"}
