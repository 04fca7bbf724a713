"""What recording a request costs an engine: on its own thread, and in the drainer, beside the OpenTelemetry SDK.

Owns two requests and the peer, which tells the same as one root span and its stages. Both have eight stamps (arrival, six
changes of stage, the end); the second also has twelve attributes on three of its stages. CPU time of this process; the
median of several runs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context

from pdtrace.instrumentation import Recorder, Resource
from pdtrace.instrumentation.stages import (
    DECODE_QUEUE,
    FIRST_TOKEN,
    HANDOFF,
    PREFILL,
    PREFILL_QUEUE,
    ROUTE,
)

_RUNS = 9
_DRAINED_TOGETHER = 256
_STAGES = (ROUTE, PREFILL_QUEUE, PREFILL, HANDOFF, DECODE_QUEUE, FIRST_TOKEN)
#: What the stages of the second request know.
_KNOWN: dict[str, dict[str, Any]] = {
    ROUTE: {
        "pdtrace.router.stage": "prefill",
        "pdtrace.router.mode": "events",
        "pdtrace.router.chosen": "p0",
        "pdtrace.router.candidates": ["p0", "p1", "p2", "p3"],
        "pdtrace.router.overlap_tokens": [512, 0, 256, 0],
    },
    PREFILL: {"pdtrace.prompt_tokens": 4096, "pdtrace.cached_tokens": 512, "pdtrace.cached_tokens.device": 512},
    HANDOFF: {
        "pdtrace.handoff.backend": "nixl",
        "pdtrace.handoff.bytes": 1 << 30,
        "pdtrace.handoff.src": "p0",
        "pdtrace.handoff.dst": "d0",
    },
}


_Measure = Callable[[int, Mapping[str, dict[str, Any]]], tuple[float, float]]


class _Nowhere:
    def export(self, signal: str, body: bytes) -> None:
        """Keep nothing: sending is not what is measured."""

    def close(self) -> None:
        """Nothing is held."""


class _Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans) -> SpanExportResult:  # type: ignore[no-untyped-def]
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


def ours(count: int, known: Mapping[str, dict[str, Any]]) -> tuple[float, float]:
    """(us on the hot thread, us in the drainer) per request whose stages have these attributes."""
    recorder = Recorder(Resource("engine", "p0", "node-0", "prefill"), _Nowhere(), capacity=count, background=False)

    def request(request_id: str) -> None:
        record = recorder.begin(request_id, edge=True)
        record.next(ROUTE)
        record.next(PREFILL_QUEUE)
        record.next(PREFILL)
        record.next(HANDOFF)
        record.next(DECODE_QUEUE)
        record.next(FIRST_TOKEN)
        record.finish("ok")

    def telling_request(request_id: str) -> None:
        record = recorder.begin(request_id, edge=True)
        for stage in _STAGES:
            record.next(stage)
            for name, value in known.get(stage, {}).items():
                record.set_stage(stage, name, value)
        record.finish("ok")

    serve = telling_request if known else request
    hot_s = drain_s = 0.0
    for batch in range(count // _DRAINED_TOGETHER):
        ids = [f"chatcmpl-{batch:08x}-{number:08x}" for number in range(_DRAINED_TOGETHER)]
        before = time.process_time()
        for request_id in ids:
            serve(request_id)
        made = time.process_time()
        recorder.drain()
        drain_s += time.process_time() - made
        hot_s += made - before
        recorder.flush()
    requests = count // _DRAINED_TOGETHER * _DRAINED_TOGETHER
    return hot_s / requests * 1e6, drain_s / requests * 1e6


def sdk(count: int, known: Mapping[str, dict[str, Any]]) -> tuple[float, float]:
    """The same of the SDK: seven spans started and ended by hand, then its encoder and protobuf's serialiser."""
    kept = _Kept()
    provider = TracerProvider(resource=SdkResource({"service.name": "engine", "service.instance.id": "p0"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("pdtrace")

    def request() -> None:
        root = tracer.start_span("pdtrace.request", attributes={"pdtrace.request.id": "chatcmpl-00000001-00000001"})
        above = set_span_in_context(root)
        for stage in _STAGES:
            attributes = {
                "pdtrace.request.id": "chatcmpl-00000001-00000001",
                "pdtrace.attempt": 0,
                **known.get(stage, {}),
            }
            tracer.start_span(f"pdtrace.{stage}", context=above, attributes=attributes).end()
        root.end()

    hot_us = _us(request, count)
    before = time.process_time()
    for first in range(0, len(kept.spans), 512):
        encode_spans(kept.spans[first : first + 512]).SerializeToString()
    drain_us = (time.process_time() - before) / count * 1e6
    provider.shutdown()
    return hot_us, drain_us


def off(count: int) -> float:
    """us per request of one boolean check."""
    recorder = Recorder(Resource(), _Nowhere(), background=False)
    recorder.enabled = False

    def request() -> None:
        if recorder.enabled:
            recorder.begin("request-1")

    return _us(request, count)


def _us(request: Callable[[], None], count: int) -> float:
    before = time.process_time()
    for _ in range(count):
        request()
    return (time.process_time() - before) / count * 1e6


def main() -> None:
    """Print one JSON line for the hot thread and one for the drainer, for each of the two requests."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    report("", ours, sdk, {}, count, (2.0, 10.0))
    report(", 12 attributes", ours, sdk, _KNOWN, count, (None, None))


def report(
    title: str,
    ours: _Measure,
    sdk: _Measure,
    known: Mapping[str, dict[str, Any]],
    count: int,
    wanted: tuple[float | None, float | None],
) -> None:
    """Measure one request and print two lines."""
    ours(1_000, known), sdk(100, known)  # imports and caches
    mine: list[tuple[float, float]] = []
    peer: list[tuple[float, float]] = []
    for _ in range(_RUNS):  # in turn: others use the machine too
        mine.append(ours(count, known))
        peer.append(sdk(count // 20, known))
    for at, name in enumerate(("hot thread", "drained and encoded")):
        value, other = statistics.median(run[at] for run in mine), statistics.median(run[at] for run in peer)
        line = {
            "benchmark": f"recording a request{title}, {name}",
            "value": round(value, 2),
            "unit": "us per request",
            "wanted": wanted[at],
            "smaller_is_better": True,
            "peer": "OpenTelemetry SDK, the same seven spans",
            "peer_value": round(other, 1),
            "ratio": round(other / value, 1),
            "fastest": round(min(run[at] for run in mine), 2),
            "slowest": round(max(run[at] for run in mine), 2),
        }
        if at == 0:
            line["off"] = round(off(count), 3)
        print(json.dumps(line))


if __name__ == "__main__":
    main()
