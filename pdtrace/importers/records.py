"""JSON values of request traces and benchmark results to Records: what names each, when it was, and that is all.

Owns the identity (key) and time of a record of each kind. What the bodies mean is the dialects'.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from pdtrace.model import Record

RecordKind = Callable[[dict[str, Any]], Record]


class NotARecord(ValueError):
    """The value is not of the kind that its file is; the text says what would be."""


def dynamo_request_trace(value: dict[str, Any]) -> Record:
    """One line of Dynamo's request trace, wrapped in {"timestamp", "event"} as its file sink does, or bare.

    Source: Dynamo 1.5.1, captures and docs page "Request Replay Tracing".
    """
    event = value.get("event", value)
    if not isinstance(event, dict) or event.get("schema") != "dynamo.request.trace.v1":
        raise NotARecord('a Dynamo request-trace event has "schema": "dynamo.request.trace.v1"')
    request = event.get("request")
    if not isinstance(request, dict) or not request.get("request_id"):
        raise NotARecord(f"the event {event.get('event_type')} is of no request (no request.request_id)")
    return Record(
        "dynamo.request_trace", str(request["request_id"]), _ns(event.get("event_time_unix_ms"), 10**6), event
    )


def trtllm_perf_metrics(value: dict[str, Any]) -> Record:
    """One entry of TensorRT-LLM's GET /perf_metrics, of the proxy or of a worker; its stamps are no Unix time.

    The key is the one the trtllm dialect gives the same entry (a test compares).
    """
    if "perf_metrics" not in value and "disagg_server_arrival_time" not in value:
        raise NotARecord("a /perf_metrics entry has `perf_metrics` (worker) or `disagg_server_arrival_time` (proxy)")
    digest = _digest(value)
    disagg_id = value.get("disagg_request_id")
    return Record("trtllm.perf_metrics", digest if disagg_id is None else f"{disagg_id}:{digest}", 0, value)


def aiperf(value: dict[str, Any]) -> Record:
    """One line of AIPerf's profile_export.jsonl; named by the x-request-id that AIPerf sent.

    Source: ai-dynamo/aiperf@7c31f57 (``timestamp_ns``), later versions (``request_start_ns``).
    """
    metadata = value.get("metadata")
    if not isinstance(metadata, dict):
        raise NotARecord('an AIPerf record has "metadata"')
    session = metadata.get("x_correlation_id") or metadata.get("conversation_id") or metadata.get("session_num")
    key = metadata.get("x_request_id")
    if not key and session is not None:
        key = f"{session}-{metadata.get('turn_index', 0)}"
    if not key:
        raise NotARecord("an AIPerf record has metadata.x_request_id, or x_correlation_id and turn_index")
    stamp = metadata.get("request_start_ns")
    return Record("client.aiperf", str(key), _ns(metadata.get("timestamp_ns") if stamp is None else stamp, 1), value)


def vllm_bench(value: dict[str, Any]) -> Record:
    """The result file of `vllm bench serve` (and of SGLang's bench_serving, same form). Its date has no time zone."""
    if "num_prompts" not in value:
        raise NotARecord('a vLLM bench result has "num_prompts"')
    return Record("client.vllm_bench", _digest(value), 0, value)


def guidellm(value: dict[str, Any]) -> Record:
    """A GuideLLM report (version 2); the time is the first benchmark's start."""
    benchmarks = value.get("benchmarks")
    if not isinstance(benchmarks, list):
        raise NotARecord('a GuideLLM report has a list "benchmarks"')
    first = benchmarks[0] if benchmarks and isinstance(benchmarks[0], dict) else {}
    return Record("client.guidellm", _digest(value), _ns(first.get("start_time"), 10**9), value)


RECORD_KINDS: Final[dict[str, RecordKind]] = {
    "dynamo.request_trace": dynamo_request_trace,
    "trtllm.perf_metrics": trtllm_perf_metrics,
    "client.aiperf": aiperf,
    "client.vllm_bench": vllm_bench,
    "client.guidellm": guidellm,
}


def _ns(value: object, unit_ns: int) -> int:
    """``value`` units as Unix ns; 0 (no time) for anything that is no number of this era."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    if isinstance(value, float) and not value.is_integer():
        value = round(value * 1000) if unit_ns >= 1000 else round(value)
        unit_ns = unit_ns // 1000 if unit_ns >= 1000 else unit_ns
    ns = int(value) * unit_ns
    return ns if 0 < ns < 2**63 else 0


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
