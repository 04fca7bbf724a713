"""Dynamo's request trace (schema dynamo.request.trace.v1): one record per finished request, as file line or OTLP log.

Owns the record's form and what its numbers really measure. Never places a section: its stamps are the front end's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from pdtrace.dialects.contract import as_float, as_int, ms_to_ns
from pdtrace.dialects.dynamo_routing import DIALECT
from pdtrace.model import Edge, Evidence, Log, Reading, Record, TtftClaim

KIND: Final = "dynamo.request_trace"
SCOPE: Final = "dynamo.request_trace"
SCHEMA: Final = "dynamo.request.trace.v1"


def from_event(event: object) -> Record | None:
    """The record of one "event" object of the file form, or of the JSON payload of the log form.

    Returns None for anything that is no request-trace event with a request id.
    """
    if not isinstance(event, dict) or event.get("schema") != SCHEMA:
        return None
    request = event.get("request")
    if not isinstance(request, dict) or not request.get("request_id"):
        return None
    at_ms = as_int(event.get("event_time_unix_ms"))
    return Record(KIND, str(request["request_id"]), 0 if at_ms is None else at_ms * 1_000_000, event)


def from_log(log: Log) -> Record | None:
    """The record inside an OTLP log of the request-trace scope; equal to the file's record of the same request.

    Returns None for other logs, and for a payload that is cut off or is no JSON (``payload_complete`` false).
    """
    if log.scope != SCOPE:
        return None
    payload = log.attributes.get("payload")
    if not isinstance(payload, str | bytes):
        return None
    try:
        record = from_event(orjson.loads(payload))
    except orjson.JSONDecodeError:
        return None
    if record is not None:
        record.trace_id = log.trace_id
        record.received_ns = log.received_ns
    return record


class _Number(NamedTuple):
    field: str
    name: str
    unit: str
    text: str


_EVIDENCE: Final = (
    _Number("prefill_wait_time_ms", "frontend_receive_to_dispatch", "ns", "front end, receive to dispatch; no P queue"),
    _Number("prefill_time_ms", "prefill_time_at_frontend", "ns", "dispatch to P's first token, seen by the front end"),
    _Number("total_time_ms", "total_time_at_frontend", "ns", "receive to end, as the front end saw it"),
    _Number("avg_itl_ms", "avg_itl_after_prefill_token", "ns", "mean gap, from P's first token on"),
    _Number("queue_depth", "router_queue_depth", "requests", "requests waiting in the router at the time"),
    _Number("kv_hit_rate", "predicted_hit_ratio", "", "share of the prompt's blocks predicted to be cached on P"),
)


def read(record: Record, out: Reading) -> None:
    """Append facts, claims and evidence of one record; it makes an edge only for a request that sent no spans."""
    request = _object(record.body, "request")
    out.fact("request_id", record.key)
    _read_facts(request, out)
    _read_numbers(request, out)
    _read_claims(request, out)
    if not out.edges:  # else the span of the front end knows better how the request ended
        _read_answer(request, out)
    if not (out.edges or out.legs or out.envelopes or out.activities):
        _read_edge(record, request, out)


def _object(body: dict[str, Any], field: str) -> dict[str, Any]:
    """The JSON object under ``field``; {} if it is absent or something else."""
    value = body.get(field)
    return value if isinstance(value, dict) else {}


def _read_facts(request: dict[str, Any], out: Reading) -> None:
    alias = request.get("x_request_id")
    if alias:
        aliases = out.facts.setdefault("aliases", [])
        if alias not in aliases:
            aliases.append(str(alias))
    out.fact("model", request.get("model"))
    out.fact("input_tokens", as_int(request.get("input_tokens")) or None)
    out.fact("output_tokens", as_int(request.get("output_tokens")))
    # cached_tokens of the request trace is overlap_blocks x trace_block_size, the router's PREDICTION for P: equal in
    # all 502 records of seven captures. What P really found cached is nowhere, so the fact cached_tokens stays unset.
    out.fact("predicted_cached_tokens", as_int(request.get("cached_tokens")))
    finish = _object(request, "finish_reason_metadata")
    out.fact("finish_reason", finish.get("finish_reason"))
    workers = _object(request, "worker")
    for fact, field in (("prefill_worker", "prefill_worker_id"), ("decode_worker", "decode_worker_id")):
        if workers.get(field) is not None:
            out.fact(fact, str(workers[field]))


def _read_numbers(request: dict[str, Any], out: Reading) -> None:
    for field, name, unit, text in _EVIDENCE:
        value = as_float(request.get(field))
        if value is None:
            continue
        shown = ms_to_ns(value) if unit == "ns" else int(value) if value.is_integer() and unit else value
        out.evidence.append(Evidence(name, shown, unit, text))
    received_ms = as_int(request.get("request_received_ms"))
    ttft_ns = ms_to_ns(request.get("ttft_ms"))
    if received_ms is not None and ttft_ns is not None:
        text = "P's first token as the FRONT END stamped it (ms resolution); never used as a cut between stages"
        out.evidence.append(Evidence("prefill_stamp_at_frontend", received_ms * 1_000_000 + ttft_ns, "unix_ns", text))


def _read_claims(request: dict[str, Any], out: Reading) -> None:
    """``ttft_ms`` is the prefill's first token in P/D; plus the transfer estimate it is the user's, if P came first."""
    ttft_ns = ms_to_ns(request.get("ttft_ms"))
    estimate_ns = ms_to_ns(request.get("kv_transfer_estimated_latency_ms"))
    mode = out.facts.get("mode")
    disaggregated = _is_disaggregated(request)
    if ttft_ns is not None and ttft_ns >= 0:
        measures = (
            "the PREFILL's first token at the front end; the user's first token comes from D, later"
            if disaggregated
            else "the first token at the front end"
        )
        out.ttft_claims.append(TtftClaim("dynamo_nvext", ttft_ns, measures))
    if estimate_ns is None:
        return
    # In bootstrap mode D is dispatched with P and the estimate is a constant 0.0.
    if mode == "overlapped" or (mode is None and estimate_ns == 0):
        text = "Dynamo's estimate of the KV transfer says nothing when P and D are called together (it reads 0)"
        out.evidence.append(Evidence("kv_transfer_estimated", None, "ns", text))
        return
    text = "upper bound of the handoff: D's first token minus prefill complete; D's queue and first step are in it"
    out.evidence.append(Evidence("kv_transfer_estimated", estimate_ns, "ns", text))
    if ttft_ns is not None and ttft_ns >= 0:
        measures = "the prefill's first token plus the estimated transfer: the user's first token, rebuilt"
        out.ttft_claims.append(TtftClaim("estimate", ttft_ns + estimate_ns, measures))


def _is_disaggregated(request: dict[str, Any]) -> bool:
    workers = _object(request, "worker")
    return bool(workers.get("prefill_worker_id") != workers.get("decode_worker_id"))


def _read_edge(record: Record, request: dict[str, Any], out: Reading) -> None:
    """A request that sent no spans (traceparent flag 00): its window's start and end, and no first token.

    The record's TTFT is P's in P/D, and in bootstrap mode it cannot be mended, so the request has none; the claims stay.
    """
    received_ms = as_int(request.get("request_received_ms"))
    if received_ms is None and not record.time_ns:
        return
    # Without a receive time all that is known is when it ended.
    start_ns = record.time_ns if received_ms is None else received_ms * 1_000_000
    total_ns = ms_to_ns(request.get("total_time_ms"))
    end_ns = start_ns + total_ns if total_ns is not None and total_ns >= 0 else record.time_ns
    out.edges.append(Edge("frontend", start_ns, end_ns, f"record:{KIND}", record.source, record.trace_id, DIALECT))
    out.warn("no_spans", "only Dynamo's request trace is known of this request: no stages, no first token of the user")


def _read_answer(request: dict[str, Any], out: Reading) -> None:
    """Only requests with a session id (these carry their model too) carry a finish reason: then its absence tells.

    Without a session, tokens are the best sign of an answer; a client that left halfway looks the same.
    """
    if _object(request, "finish_reason_metadata"):
        out.fact("answered", value=True)
    elif request.get("model") is None and (as_int(request.get("output_tokens")) or 0) > 0:
        out.fact("answered", value=True)
        out.warn("outcome_from_tokens", "no finish reason was recorded: taken as answered because tokens were sent")
