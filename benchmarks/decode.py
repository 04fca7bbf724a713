"""CPU time per span of the three OTLP trace decoders on one synthetic request; prints a line each.

Owns the payload (512 spans, 12 attributes, 2 events with 2 attributes each) and the timing. Asserts nothing.
Run: python benchmarks/decode.py [rounds]
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.otlp.decode import decode

_SPANS = 512
_EVENTS = 2
_START_NS = 1_796_074_641_000_000_000


def request(spans: int = _SPANS, seed: int = 1, events: int = _EVENTS) -> ExportTraceServiceRequest:
    """A request like an engine's: one resource, ``spans`` spans of 12 attributes, some links and errors."""
    rng = random.Random(seed)
    out = ExportTraceServiceRequest()
    resource_spans = out.resource_spans.add()
    for key, text in (("service.name", "decode"), ("service.instance.id", "d0"), ("host.name", "node-1")):
        resource_spans.resource.attributes.add(key=key).value.string_value = text
    scope_spans = resource_spans.scope_spans.add()
    scope_spans.scope.name = "engine"
    for i in range(spans):
        start_ns = _START_NS + i * 1_000_000
        span = scope_spans.spans.add(
            trace_id=rng.randbytes(16), span_id=rng.randbytes(8), parent_span_id=rng.randbytes(8), name="decode_step",
            kind=2, start_time_unix_nano=start_ns, end_time_unix_nano=start_ns + 500_000,
        )  # fmt: skip
        for j in range(6):
            span.attributes.add(key=f"gen_ai.text.{j}").value.string_value = f"value-{rng.randrange(1000)}-{j}"
        for j in range(3):
            span.attributes.add(key=f"gen_ai.count.{j}").value.int_value = rng.randrange(10**6)
        for j in range(2):
            span.attributes.add(key=f"gen_ai.latency.{j}").value.double_value = rng.random()
        span.attributes.add(key="stream").value.bool_value = i % 2 == 0
        for j in range(events):
            event = span.events.add(time_unix_nano=start_ns + j, name=f"event-{j}")
            event.attributes.add(key="tokens").value.int_value = j
            event.attributes.add(key="state").value.string_value = "running"
        if i % 10 == 0:
            span.links.add(trace_id=rng.randbytes(16), span_id=rng.randbytes(8))
        if i % 50 == 0:
            span.status.code = 2  # type: ignore[assignment]
            span.status.message = "aborted"
    return out


def _microseconds(call: Callable[[], object], rounds: int) -> tuple[float, float]:
    times = []
    for _ in range(rounds):
        before = time.thread_time()
        call()
        times.append((time.thread_time() - before) / _SPANS * 1e6)
    return statistics.median(times), min(times)


def main() -> None:
    """Print median and best CPU microseconds per span."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    for label, events in (("2 events", 2), ("no events", 0)):
        body = request(events=events).SerializeToString()
        for name, vectorised in (("ptars + Arrow", True), ("upb walk", False)):
            median, best = _microseconds(
                lambda body=body, vectorised=vectorised: decode(
                    "traces", body, encoding="protobuf", received_ns=_START_NS, where="bench", vectorised=vectorised
                ),
                rounds,
            )
            print(f"{label}, {name}: {median:.2f} us/span median, {best:.2f} best, body {len(body)} bytes")


if __name__ == "__main__":
    main()
