"""What to switch on, on which engine, to see more: advice a dialect and a warning.

Owns sentences for the Health page. What a dialect cannot see comes from the service; settings named here are those of
the engines' own documentation and of recorded deployments.
"""

from __future__ import annotations

from typing import Final

#: dialect -> what to set on that engine so that it tells as much as it can.
OF_DIALECT: Final[dict[str, str]] = {
    "dynamo": (
        "on front end and workers `OTEL_EXPORT_ENABLED=1` and `DYN_LOGGING_JSONL=1`; on the front end also "
        "`DYN_REQUEST_TRACE=1` with `DYN_REQUEST_TRACE_SINKS=file,otel`, for cached tokens and the transfer estimate"
    ),
    "sglang": (
        "on P and D `--enable-trace --trace-modules request,mooncake` and `SGLANG_TRACE_LEVEL=3`; 0.5.23 or newer for "
        "waiting slices"
    ),
    "smg": "on the router `--enable-trace --log-level info`; send `x-request-id`, because its `traceparent` is lost",
    "vllm": (
        "on P and D `--otlp-traces-endpoint` and a `OTEL_SERVICE_NAME` that says prefill or decode; put a router or "
        "client span around the request for its edge; LMCache with `--enable-tracing` for cached tokens"
    ),
    "vllm_router": "`enable_trace=True` in the constructor (its command line has no flag); streamed answers; a client span",
    "lmcache": "`lmcache server --enable-tracing --otlp-endpoint ...`; its metrics tell the stores",
    "trtllm": (
        "`return_perf_metrics: true` and `perf_metrics_max_requests: N`, and poll `/perf_metrics` of the proxy "
        "(`pdtrace ingest` reads it); a proxy that hands on trace headers"
    ),
    "llmd": (
        "`OTEL_TRACES_EXPORTER=otlp` and a sampler of 1.0 (the default keeps one trace in ten); a sidecar with "
        "llm-d-router#1667, which hands the trace on"
    ),
    "generic": "stage spans: the pdtrace SDK's, or an engine whose dialect is known",
}

#: warning code -> what would remove the doubt; a code that is not here tells a fact, not a gap.
OF_WARNING: Final[dict[str, str]] = {
    "may_hold_transfer": "nothing per request: compare with the engine's NIXL transfer metrics",
    "unary_answer": "stream the answers, or trace the client: only a stream has a first token to time",
    "no_edge_span": "switch tracing on in the front end or router, or trace the client",
    "worker_sent_no_span": "switch tracing on in that worker; check that it reaches the receiver and is sampled",
    "parent_missing": "let the sender of the missing parent export too, or wait: it may still come",
    "prefill_not_seen": "switch tracing on in the prefill worker",
    "no_spans": "sample these requests (traceparent flag 01)",
    "start_unknown": "switch tracing on at the front end: a record alone has no start",
    "role_from_order": "name the worker's role in `OTEL_SERVICE_NAME`",
    "clock_shifted": "synchronise the hosts' clocks (chrony, PTP)",
    "clock_shift_refused": "synchronise the hosts' clocks, or raise `--max-clock-shift`",
    "clock_conflict": "synchronise the hosts' clocks: no one offset explains these stamps",
    "ctx_metrics_missing": "raise `perf_metrics_max_requests` or poll `/perf_metrics` more often",
}
