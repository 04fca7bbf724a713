"""The requests that the tests of API, command line and exporters share.

Owns fixtures only.
"""

from __future__ import annotations

from pdtrace.model import Batch, Rejection, RequestWarning, Span, TtftClaim
from pdtrace.store.contract import Store
from tests.reader.requests import MS, T0, make_request, trace_id_of

EXAMPLE = [("ingress", 5), ("prefill", 95), ("handoff", 10), ("first_token", 10)]


def fill(store: Store) -> None:
    """Three requests: one answered, one cancelled before its first token, one in flight; and a span of the first."""
    answered = make_request(
        "one",
        EXAMPLE,
        hidden_ns={"handoff": 40 * MS},
        saving_ns={"prefill": 55 * MS, "prefill_opaque": None},
        ttft_claims=[TtftClaim("router", 54 * MS, "time to decode dispatch")],
        warnings=[RequestWarning("no_edge_span", "nobody saw the client's side")],
        input_tokens=100,
        output_tokens=7,
        token_times_ns=[T0 + 120 * MS, T0 + 140 * MS],
    )
    cancelled = make_request(
        "two", None, at_s=1, to_end_ms=[("prefill_queue", 1500)], outcome="cancelled", prefill_worker="p/1 ü"
    )
    running = make_request("three", None, at_s=2, end_after_ms=None, outcome="in_flight", model="qwen")
    store.add(
        Batch(
            spans=[
                Span(
                    trace_id_of("one"), "00000000000000aa", "", "prefill", 2, T0, T0 + MS, "scope",
                    {"service.name": "p0"}, {"n": 2**53 + 1, "x": float("nan"), "raw": b"\x00\xff", "list": [1, "a"]},
                )
            ],
            rejections=[Rejection("span", "grpc", "trace id is all zero; 16 bytes, not all zero, would be right", 3)],
        )
    )  # fmt: skip
    store.replace_requests([r.sources[0] for r in (answered, cancelled, running)], [answered, cancelled, running])
