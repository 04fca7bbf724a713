"""A known set of requests and spans, whose answers the reader conformance suite spells out.

Run ``stack`` is case p99-stack: 100 requests of prefill 100 ms + handoff 10 ms, but for number 1 (1000 + 10) and
number 2 (100 + 910). Run ``mixed``, all of model llama unless said, on one axis (s after T0, ms inside):

```
ok      at  0   ingress 5  prefill 95  handoff 10 (hidden 40)  first_token 10       p0>d0   120 ms
slow    at 10   prefill_queue 300  prefill 100                                      p1>d0   400 ms   qwen
alone   at 12   prefill 60                                                          a0, aggregated    60 ms
full    at 13   429 after 150 ms: no first token                                    rejected
lost    at 14   prefill 20, then it failed                                          failed_prefill, 2 s wasted
wait    at 70   still in the prefill queue after 500 ms                             in flight
talk    at 80   first token after 50 ms, still open                                 in flight
```
"""

from __future__ import annotations

import math

from pdtrace.model import (
    Batch,
    ClockOffset,
    Evidence,
    Log,
    Point,
    Rejection,
    Request,
    RequestWarning,
    Span,
    SpanEvent,
    TtftClaim,
)
from pdtrace.store.contract import Store
from tests.reader.requests import MS, T0, S, make_request, trace_id_of


def fill(store: Store) -> None:
    """Put everything known into an empty store."""
    store.add(known_batch())
    store.add(known_batch())  # a retry: all of it came before
    requests = known_requests()
    store.replace_requests([source for r in requests for source in r.sources], requests)


def known_batch() -> Batch:
    """Raw telemetry: two spans of request ``ok``, a log, a point, three rejections."""
    resource = {"service.name": "frontend", "host.name": "a"}
    outer = Span(
        trace_id=trace_id_of("ok"),
        span_id="00000000000000a1",
        parent_id="",
        name="POST /v1/chat/completions",
        kind=2,
        start_ns=T0,
        end_ns=T0 + 2 * S,
        scope="frontend",
        resource=resource,
        attributes={"n": 1, "ratio": 1.0, "raw": b"\x00", "nan": math.nan},
        events=[SpanEvent(T0 + 120 * MS, "first_token", {"index": 0})],
        links=[(trace_id_of("slow"), "00000000000000b1")],
        status=1,
        status_message="fine",
        received_ns=T0 + 3 * S,
    )
    inner = Span(trace_id_of("ok"), "00000000000000a2", "00000000000000a1", "prefill", 1, T0 + 5 * MS, T0 + 100 * MS,
                 "engine", resource, {})  # fmt: skip
    return Batch(
        spans=[inner, outer],
        logs=[Log(T0, "INFO", "", "started", "s", resource, {})],
        points=[Point("kv_usage", "gauge", "1", T0, 0, "s", resource, {}, 0.5)],
        rejections=[Rejection("line", "f.jsonl:3", "not JSON", 1), Rejection("span", "grpc", "no trace id", 2)],
    )


def known_requests() -> list[Request]:
    """Every request of the module's docstring."""
    stack = [("prefill", 1000, 10), ("prefill", 100, 910)] + [("prefill", 100, 10)] * 98
    return [
        *(
            make_request(f"stack{n:03}", [("prefill", prefill), ("handoff", handoff)], at_s=200 + n, run="stack")
            for n, (_, prefill, handoff) in enumerate(stack, start=1)
        ),
        *_mixed(),
    ]


def _mixed() -> list[Request]:
    return [
        make_request(
            "ok",
            [("ingress", 5), ("prefill", 95), ("handoff", 10), ("first_token", 10)],
            run="mixed",
            aliases=["chatcmpl-7f3a"],
            dialects=["dynamo", "vllm"],
            hidden_ns={"handoff": 40 * MS},
            saving_ns={"ingress": 5 * MS, "prefill": 55 * MS, "handoff": 10 * MS, "first_token": 10 * MS},
            input_tokens=1000,
            output_tokens=20,
            cached_tokens=128,
            http_status=200,
            received_ns=T0 + 3 * S,
            ttft_claims=[
                TtftClaim("router", 118 * MS, "from the router's dispatch"),
                TtftClaim("prefill_engine", 90 * MS, "P's own first token"),
            ],
            evidence=[Evidence("queue_residual", 1.5, "ms", "reported queue minus what fits", "00000000000000a2")],
            warnings=[
                RequestWarning("clock_shifted", "P's stamps were moved by 3 ms"),
                RequestWarning("clock_shifted", "D's stamps were moved by 1 ms"),
            ],
            offsets=[ClockOffset("host:b", "host:a", 2 * MS, 5 * MS, 3 * MS)],
            token_times_ns=[T0 + 120 * MS, T0 + 150 * MS],
        ),
        make_request(
            "slow",
            [("prefill_queue", 300), ("prefill", 100)],
            at_s=10,
            run="mixed",
            model="qwen",
            prefill_worker="p1",
            outcome="ok_fallback",
            attempts=2,
            wasted_ns=S,
            wasted_gpu_seconds=4.0,
            saving_ns={"prefill_queue": 300 * MS, "prefill": 100 * MS},
            offsets=[ClockOffset("host:b", "host:a", None, 4 * MS, 0)],
            warnings=[RequestWarning("no_edge_span", "no front end or router span was seen")],
        ),
        make_request(
            "alone",
            [("prefill_opaque", 60)],
            at_s=12,
            run="mixed",
            mode="aggregated",
            prefill_worker="a0",
            decode_worker=None,
            saving_ns={"prefill_opaque": None},
            warnings=[RequestWarning("no_edge_span", "no front end or router span was seen either")],
        ),
        make_request(
            "full",
            None,
            at_s=13,
            run="mixed",
            outcome="rejected",
            outcome_text="HTTP 429: the queue is full",
            http_status=429,
            end_after_ms=150,
            to_end_ms=[("ingress", 150)],
            prefill_worker=None,
            decode_worker=None,
        ),
        make_request(
            "lost", None, at_s=14, run="mixed", outcome="failed_prefill", wasted_ns=2 * S, to_end_ms=[("prefill", 2000)]
        ),
        make_request(
            "wait",
            None,
            at_s=70,
            run="mixed",
            outcome="in_flight",
            end_after_ms=None,
            to_end_ms=[("ingress", 100), ("prefill_queue", 400)],
            decode_worker=None,
        ),
        make_request("talk", [("prefill", 50)], at_s=80, run="mixed", outcome="in_flight", end_after_ms=None),
    ]
