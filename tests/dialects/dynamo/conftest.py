"""Captured Dynamo telemetry as spans, records and readings, and hand-made spans of one request.

Owns the fixtures of tests/dialects/dynamo. Does not charge.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdtrace.assemble.group import group
from pdtrace.dialects.contract import Tree
from pdtrace.dialects.dynamo import DynamoDialect
from pdtrace.dialects.dynamo_request_trace import from_event
from pdtrace.model import Log, Reading, Record, Span, SpanEvent
from pdtrace.otlp.decode import decode_logs, decode_traces

CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "dynamo-1.5.1"
RECEIVED_NS = 1_800_000_000_000_000_000  # after the last capture
DIALECT = DynamoDialect()


def _lines(name: str, file: str) -> list[bytes]:
    with gzip.open(CAPTURES / name / file, "rb") as lines:
        return lines.readlines()


@dataclass
class Capture:
    """One captured scenario, as it came."""

    name: str
    spans: list[Span]
    logs: list[Log]
    events: list[dict[str, Any]]  #: of request_trace.jsonl
    client: dict[str, dict[str, Any]]  #: x_request_id -> what the client wrote down
    records: list[Record] = field(default_factory=list)

    def readings(self, *, with_records: bool = True) -> dict[str, Reading]:
        """x_request_id (else request id) -> what the dialect reads of that request."""
        return readings(self.spans, self.records if with_records else [])


def readings(spans: Sequence[Span], records: Sequence[Record] = ()) -> dict[str, Reading]:
    """Group spans and records of Dynamo into requests and read each."""
    identities = {span.key: identity for span in spans if (identity := DIALECT.identify(span)) is not None}
    kept = [span for span in spans if span.key in identities and identities[span.key].part != "noise"]
    found: dict[str, Reading] = {}
    for each in group(kept, identities, [(record, DIALECT.record_keys(record) or ()) for record in records]):
        out = Reading()
        tree = Tree(each.spans, identities)
        if each.spans:
            DIALECT.read(tree.spans, tree, out)
        for record in each.records:
            DIALECT.read_record(record, out)
        name = (out.facts.get("aliases") or [out.facts.get("request_id", "")])[0]
        assert name not in found, f"two requests called {name}"
        found[name] = out
    return found


@cache
def load_capture(name: str) -> Capture:
    """The capture of that name; skips the test where the captures are not beside the checkout."""
    if not CAPTURES.is_dir():
        pytest.skip(f"the recorded Dynamo captures are not beside this checkout: {CAPTURES}")
    spans = [
        span
        for line in _lines(name, "traces.otlp.jsonl.gz")
        for span in decode_traces(line, encoding="json", received_ns=RECEIVED_NS, where=name).spans
    ]
    logs = [
        log
        for line in _lines(name, "logs.otlp.jsonl.gz")
        for log in decode_logs(line, encoding="json", received_ns=RECEIVED_NS, where=name).logs
    ]
    events = [json.loads(line)["event"] for line in _lines(name, "request_trace.jsonl.gz")]
    client = {row["x_request_id"]: row for row in map(json.loads, _lines(name, "client.jsonl.gz"))}
    records = [record for event in events if (record := from_event(event)) is not None]
    return Capture(name, spans, logs, events, client, records)


@pytest.fixture
def capture() -> Callable[[str], Capture]:
    """Name of a scenario -> its capture."""
    return load_capture


MS = 1_000_000
T0 = 1_796_074_641_000_000_000
TRACE = "d95bafc8f2a4d27bdcf4bb99f4bea973"
UUID = "9e14d2ea-5b03-4572-b469-7ac2312c9e6b"
EDGE = "e000000000000000"


def make_span(
    name: str,
    at_ms: tuple[float, float],
    *,
    parent: str = EDGE,
    span_id: str = "",
    events: Sequence[tuple[float, str, dict[str, Any]]] = (),
    status: int = 0,
    **attributes: object,
) -> Span:
    """A Dynamo span of TRACE; ``at_ms`` counts from T0 (an end of 0 is open), attribute names have __ for dots."""
    start_ms, end_ms = at_ms
    end_ns = T0 + round(end_ms * MS) if end_ms else 0
    service = "dynamo-worker" if name == "handle_payload" else "dynamo-frontend"
    return Span(
        trace_id=TRACE,
        span_id=span_id or f"{zlib.crc32(repr((name, at_ms, attributes)).encode()):016x}",
        parent_id=parent,
        name=name,
        kind=1,
        start_ns=T0 + round(start_ms * MS),
        end_ns=end_ns,
        scope=service,
        resource={"service.name": service},
        attributes={key.replace("__", "."): value for key, value in attributes.items()},
        events=[SpanEvent(T0 + round(ms * MS), text, fields) for ms, text, fields in events],
        status=status,
    )


def make_http(
    at_ms: tuple[float, float],
    events: Sequence[tuple[float, str, dict[str, Any]]] = (),
    status: int = 0,
    **attributes: object,
) -> Span:
    """The front end span of the hand-made request."""
    known: dict[str, Any] = {"method": "POST", "uri": "/v1/chat/completions", "request_id": UUID, "x_request_id": "x-1"}
    return make_span(
        "http-request", at_ms, parent="", span_id=EDGE, events=events, status=status, **{**known, **attributes}
    )


def make_route(at_ms: tuple[float, float], phase: str, worker: str, span_id: str = "", **attributes: object) -> Span:
    """A call of the front end to a worker."""
    known: dict[str, Any] = {"request_id": UUID, "phase": phase, "worker_id": worker, "request__attempt": "0"}
    return make_span("kv_router.route_request", at_ms, span_id=span_id, **{**known, **attributes})


def make_payload(at_ms: tuple[float, float], route: Span, component: str, worker: str) -> Span:
    """A worker's own span below ``route``."""
    return make_span(
        "handle_payload",
        at_ms,
        parent=route.span_id,
        events=[(at_ms[1], "request completed", {})],
        request_id=UUID,
        component=component,
        endpoint="generate",
        instance_id=worker,
    )
