"""Rows of the store's tables as the rows of the reader contract.

Owns the keys and shapes that `pdtrace requests --json`, `pdtrace trace --json` and the API print. Does not query.

Telemetry values keep their typed JSON form (pdtrace/store/encoding.py): bytes and non-finite doubles show as tagged
objects, so that a local answer and one over HTTP are the same.
"""

from __future__ import annotations

from typing import Any

import orjson

from pdtrace.model import Span
from pdtrace.reader.contract import Row
from pdtrace.stages import HIDEABLE, STAGES
from pdtrace.store.details import read_details
from pdtrace.store.encoding import dumps

#: Scalar keys that a request row copies from its table row.
_COPIED = (
    "uid",
    "t0_ns",
    "end_ns",
    "last_ns",
    "run",
    "http_status",
    "clock",
    "received_ns",
    "wasted_ns",
    "span_count",
)


def request_row(row: Row) -> Row:
    """One line of `pdtrace requests --json`, then what pages need beyond it."""
    has_ttft = row["ttft_ns"] is not None
    result: Row = {
        "request_id": row["request_id"],
        "trace_ids": row["trace_ids"],
        "model": row["model"],
        "outcome": row["outcome"],
        "mode": row["mode"],
        "window": [row["t0_ns"], row["t1_ns"]],
        "ttft_ns": row["ttft_ns"],
        "ttft_basis": row["ttft_basis"],
        "ttft_other": _first_of_each(row["ttft_claims"]),
        "prefill_worker": row["prefill_worker"],
        "decode_worker": row["decode_worker"],
        "input_tokens": row["input_tokens"],
        "output_tokens": row["output_tokens"],
        "cached_tokens": row["cached_tokens"],
        "attempts": row["attempts"],
        "stitched_by": row["stitched_by"],
        "sections": stage_values(row, "section"),
    }
    if not has_ttft:
        result["sections_to_end"] = orjson.loads(row["sections_to_end"] or "{}")
    result["hidden"] = stage_values(row, "hidden")
    result["saving"] = _savings(row)
    result["warnings"] = _codes(row["warnings"])
    result.update((key, row[key]) for key in _COPIED)
    result["error"] = row["outcome_text"] or None
    return result


def full_request_row(row: Row) -> Row:
    """One request in full: the row of ``requests`` and every list."""
    result = request_row(row)
    ttft_ns = row["ttft_ns"]
    details = read_details(row["details"])
    result["aliases"] = row["aliases"]
    result["dialects"] = row["dialects"]
    result["sources"] = row["sources"]
    result["wasted_gpu_seconds"] = row["wasted_gpu_seconds"]
    result["activities"] = [dict(a, open=a["end_ns"] == 0) for a in details["activities"]]
    result["section_list"] = details["sections"]
    result["section_list_to_end"] = details["sections_to_end"]
    result["ttft_claims"] = [
        {
            "name": claim["name"],
            "ttft_ns": claim["ttft_ns"],
            "difference_ns": None if ttft_ns is None else claim["ttft_ns"] - ttft_ns,
            "measures": claim["measures"],
        }
        for claim in row["ttft_claims"]
    ]
    result["evidence"] = details["evidence"]
    result["warning_list"] = row["warnings"]
    result["offsets"] = row["offsets"]
    result["token_times_ns"] = details["token_times_ns"]
    return result


def span_row(span: Span) -> Row:
    """One raw span."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "kind": span.kind,
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "scope": span.scope,
        "resource": _plain(dict(span.resource)),
        "attributes": _plain(span.attributes),
        "events": [{"time_ns": e.time_ns, "name": e.name, "attributes": _plain(e.attributes)} for e in span.events],
        "links": [{"trace_id": trace_id, "span_id": span_id} for trace_id, span_id in span.links],
        "status": span.status,
        "status_message": span.status_message,
        "received_ns": span.received_ns,
    }


def stage_values(row: Row, prefix: str) -> dict[str, Any]:
    """Stage -> value of the columns ``<prefix>_<stage>_ns`` that are not NULL, in the order of STAGES."""
    stages = (s for s in STAGES if s in HIDEABLE) if prefix.endswith("hidden") else STAGES
    values = ((stage, row[f"{prefix}_{stage}_ns"]) for stage in stages)
    return {stage: value for stage, value in values if value is not None}


def _savings(row: Row) -> dict[str, int | None]:
    unknown = set(row["saving_unknown"])
    values = ((stage, row[f"saving_{stage}_ns"]) for stage in STAGES)
    return {stage: value for stage, value in values if value is not None or stage in unknown}


def _first_of_each(claims: list[Row]) -> dict[str, int]:
    result: dict[str, int] = {}
    for claim in claims:
        result.setdefault(claim["name"], claim["ttft_ns"])
    return result


def _codes(warnings: list[Row]) -> list[str]:
    return list(dict.fromkeys(w["code"] for w in warnings))


def _plain(value: Any) -> Any:
    return orjson.loads(dumps(value))
