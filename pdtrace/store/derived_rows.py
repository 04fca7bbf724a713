"""Requests as one Arrow table: scalars as columns, one column per stage, lists nested, details as JSON.

Owns the mapping between pdtrace.model.Request and schemas/sql/duckdb/0002_derived.sql. Does not touch a database.
Built column by column because this runs for every request at every tick.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from pdtrace.model import Request
from pdtrace.stages import HIDEABLE, STAGES
from pdtrace.store.details import details_column
from pdtrace.store.encoding import dumps

_text, _int, _bool = pa.string(), pa.int64(), pa.bool_()
_texts = pa.list_(_text)

SCALARS: dict[str, pa.DataType] = {
    "uid": _text,
    "request_id": _text,
    "aliases": _texts,
    "trace_ids": _texts,
    "sources": _texts,
    "dialects": _texts,
    "model": _text,
    "run": _text,
    "outcome": _text,
    "outcome_text": _text,
    "mode": _text,
    "t0_ns": _int,
    "t1_ns": _int,
    "end_ns": _int,
    "last_ns": _int,
    "received_ns": _int,
    "clock": _text,
    "ttft_ns": _int,
    "ttft_basis": _text,
    "prefill_worker": _text,
    "decode_worker": _text,
    "input_tokens": _int,
    "output_tokens": _int,
    "cached_tokens": _int,
    "attempts": _int,
    "stitched_by": _text,
    "http_status": _int,
    "wasted_ns": _int,
    "wasted_gpu_seconds": pa.float64(),
    "span_count": _int,
}

_scalars_of = attrgetter(*SCALARS)

_CLAIM = {"name": _text, "ttft_ns": _int, "measures": _text}
_WARNING = {"code": _text, "text": _text}
_OFFSET = {"clock": _text, "reference": _text, "low_ns": _int, "high_ns": _int, "applied_ns": _int}


def requests_table(requests: Sequence[Request]) -> pa.Table:
    """One row per request, columns named as in ``requests`` (to be inserted BY NAME; a stage of none has no column)."""
    scalars = zip(*map(_scalars_of, requests), strict=True) if requests else [()] * len(SCALARS)
    columns: dict[str, pa.Array] = {
        name: pa.array(values, kind) for (name, kind), values in zip(SCALARS.items(), scalars, strict=True)
    }
    charged = [r.section_totals() for r in requests]
    columns |= _by_stage("section", charged)
    columns |= _by_stage("hidden", [{s: ns for s, ns in r.hidden_ns.items() if s in HIDEABLE} for r in requests])
    columns |= _by_stage("saving", [r.saving_ns for r in requests])
    columns["saving_unknown"] = pa.array([_unknown(r.saving_ns) for r in requests], _texts)
    columns["sections_to_end"] = pa.array(
        [dumps(r.section_totals_to_end()) if r.ttft_ns is None else None for r in requests], _text
    )
    columns["waiting_in"] = pa.array(
        [r.sections_to_end[-1].stage if r.ttft_ns is None and r.sections_to_end else None for r in requests], _text
    )
    columns["ttft_claims"] = _structs([r.ttft_claims for r in requests], _CLAIM)
    columns["warnings"] = _structs([r.warnings for r in requests], _WARNING)
    columns["offsets"] = _structs([r.offsets for r in requests], _OFFSET)
    columns["details"] = details_column(requests)
    return pa.table(columns)


def sources_table(requests: Sequence[Request]) -> pa.Table:
    """One row per (request, source), as ``request_sources`` without the hash."""
    rows = [(r.uid, r.t0_ns, source) for r in requests for source in dict.fromkeys(r.sources)]
    uids, starts, sources = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        [pa.array(uids, _text), pa.array(starts, _int), pa.array(sources, _text)], ["uid", "t0_ns", "source"]
    )


def _by_stage(what: str, values: Sequence[Mapping[str, int | None]]) -> dict[str, pa.Array]:
    """A column for every stage that occurs."""
    occur = set().union(*values)
    return {f"{what}_{stage}_ns": pa.array([v.get(stage) for v in values], _int) for stage in STAGES if stage in occur}


def _unknown(saving_ns: Mapping[str, int | None]) -> list[str]:
    return [stage for stage, ns in saving_ns.items() if ns is None] if None in saving_ns.values() else []


def _structs(lists: Sequence[Sequence[tuple[Any, ...]]], fields: dict[str, pa.DataType]) -> pa.ListArray:
    flat = [row for rows in lists for row in rows]
    columns = list(zip(*flat, strict=True)) if flat else [()] * len(fields)
    arrays = [pa.array(c, kind) for c, kind in zip(columns, fields.values(), strict=True)]
    return pa.ListArray.from_arrays(_offsets(lists), pa.StructArray.from_arrays(arrays, names=list(fields)))


def _offsets(lists: Sequence[Sequence[Any]]) -> pa.Array:
    ends = [0]
    for rows in lists:
        ends.append(ends[-1] + len(rows))
    return pa.array(ends, pa.int32())
