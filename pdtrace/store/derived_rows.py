"""Requests as one Arrow table: scalars as columns, one column per stage, lists nested.

Owns the mapping between pdtrace.model.Request and schemas/sql/duckdb/0002_derived.sql. Does not touch a database.
Built column by column because this runs for every request at every tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from pdtrace.model import Request
from pdtrace.stages import HIDEABLE, STAGES
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
    "token_times_ns": pa.list_(_int),
}

ACTIVITY: dict[str, pa.DataType] = {
    "stage": _text,
    "start_ns": _int,
    "end_ns": _int,
    "worker": _text,
    "role": _text,
    "attempt": pa.int32(),
    "clock": _text,
    "span_id": _text,
    "dialect": _text,
    "rank": _text,
    "chunk": _text,
    "side": _text,
    "failed": _bool,
    "hedge": _bool,
    "gpus": pa.int32(),
}

_SECTION = {"to_end": _bool, "stage": _text, "start_ns": _int, "end_ns": _int}
_CLAIM = {"name": _text, "ttft_ns": _int, "measures": _text}
_EVIDENCE = {"name": _text, "value": _text, "unit": _text, "text": _text, "span_id": _text}
_WARNING = {"code": _text, "text": _text}
_OFFSET = {"clock": _text, "reference": _text, "low_ns": _int, "high_ns": _int, "applied_ns": _int}


def requests_table(requests: Sequence[Request]) -> pa.Table:
    """One row per request, columns named as in ``requests`` (to be inserted BY NAME)."""
    columns: dict[str, pa.Array] = {
        name: pa.array(list(map(attrgetter(name), requests)), kind) for name, kind in SCALARS.items()
    }
    charged = [r.section_totals() for r in requests]
    for stage in STAGES:
        columns[f"section_{stage}_ns"] = pa.array([c.get(stage) for c in charged], _int)
        if stage in HIDEABLE:
            columns[f"hidden_{stage}_ns"] = pa.array([r.hidden_ns.get(stage) for r in requests], _int)
        columns[f"saving_{stage}_ns"] = pa.array([r.saving_ns.get(stage) for r in requests], _int)
    columns["saving_unknown"] = pa.array([[s for s, v in r.saving_ns.items() if v is None] for r in requests], _texts)
    columns["sections_to_end"] = pa.array(
        [dumps(r.section_totals_to_end()) if r.ttft_ns is None else None for r in requests], _text
    )
    columns["waiting_in"] = pa.array(
        [r.sections_to_end[-1].stage if r.ttft_ns is None and r.sections_to_end else None for r in requests], _text
    )
    columns["sections"] = _sections(requests)
    columns["activities"] = _activities(requests)
    columns["ttft_claims"] = _structs([r.ttft_claims for r in requests], _CLAIM)
    columns["evidence"] = _structs(
        [[(e.name, dumps(e.value), e.unit, e.text, e.span_id) for e in r.evidence] for r in requests], _EVIDENCE
    )
    columns["warnings"] = _structs([r.warnings for r in requests], _WARNING)
    columns["offsets"] = _structs([r.offsets for r in requests], _OFFSET)
    return pa.table(columns)


def sources_table(requests: Sequence[Request]) -> pa.Table:
    """One row per (request, source), as ``request_sources`` without the hash."""
    rows = [(r.uid, r.t0_ns, source) for r in requests for source in dict.fromkeys(r.sources)]
    uids, starts, sources = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        [pa.array(uids, _text), pa.array(starts, _int), pa.array(sources, _text)], ["uid", "t0_ns", "source"]
    )


def _sections(requests: Sequence[Request]) -> pa.ListArray:
    flat = [section for r in requests for section in (*r.sections, *r.sections_to_end)]
    to_end = [flag for r in requests for flag in [False] * len(r.sections) + [True] * len(r.sections_to_end)]
    columns = [to_end, *(zip(*flat, strict=True) if flat else ([], [], []))]
    arrays = [pa.array(c, kind) for c, kind in zip(columns, _SECTION.values(), strict=True)]
    lists = [range(len(r.sections) + len(r.sections_to_end)) for r in requests]
    return pa.ListArray.from_arrays(_offsets(lists), pa.StructArray.from_arrays(arrays, names=list(_SECTION)))


def _activities(requests: Sequence[Request]) -> pa.ListArray:
    flat = [a for r in requests for a in r.activities]
    columns = [pa.array(list(map(attrgetter(name), flat)), kind) for name, kind in ACTIVITY.items()]
    columns.append(pa.array([dumps(a.detail) if a.detail else "{}" for a in flat], _text))
    structs = pa.StructArray.from_arrays(columns, names=[*ACTIVITY, "detail"])
    return pa.ListArray.from_arrays(_offsets([r.activities for r in requests]), structs)


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
