"""What only the page of one request shows, as one JSON text a request: written in one go, read by no scan.

Owns the form of column ``details``: ``{"sections": [[stage, start_ns, end_ns], ...], "sections_to_end": the same,
"activities": [[field, ...], ...] in the order of pdtrace.model.Activity, "evidence": [[name, value, unit, text, span_id], ...],
"token_times_ns": [ns, ...]}``. Telemetry's own values in it are typed JSON (encoding.py). Does not touch a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

import msgspec
import orjson
import pyarrow as pa

from pdtrace.model import Activity, Evidence, Request, Section
from pdtrace.store.encoding import dumps, is_plain


class _Details(msgspec.Struct, gc=False):
    sections: list[Section]
    sections_to_end: list[Section]
    activities: list[tuple[Any, ...]]
    evidence: list[Evidence]
    token_times_ns: list[int]


_ACTIVITY: Final = [field.name for field in fields(Activity)]
_activity_row: Final = attrgetter(*_ACTIVITY)
_DETAIL: Final = _ACTIVITY.index("detail")

_encode_into: Final = msgspec.json.Encoder().encode_into
_AT_ITS_END: Final = -1


def details_column(requests: Sequence[Request]) -> pa.Array:
    """The JSON text of each request's details; one growing buffer, because a text each costs twice its encoding.

    Raises:
        ValueError, TypeError: a value that no telemetry can hold (e.g. a lone surrogate).
    """
    all_plain = is_plain([a.detail for r in requests for a in r.activities]) and is_plain(
        [e.value for r in requests for e in r.evidence]
    )
    texts = bytearray()
    ends = [0]
    for request in requests:
        _encode_into(_details(request) if all_plain or _plain(request) else _exact(request), texts, _AT_ITS_END)
        ends.append(len(texts))
    return pa.StringArray.from_buffers(len(requests), pa.array(ends, pa.int32()).buffers()[1], pa.py_buffer(texts))


def read_details(text: str) -> dict[str, Any]:
    """What ``details_column`` wrote; activities and evidence as rows by name."""
    details: dict[str, Any] = orjson.loads(text)
    details["activities"] = [dict(zip(_ACTIVITY, row, strict=True)) for row in details["activities"]]
    details["evidence"] = [dict(zip(Evidence._fields, values, strict=True)) for values in details["evidence"]]
    return details


def _details(r: Request) -> _Details:
    activities = list(map(_activity_row, r.activities))
    return _Details(r.sections, r.sections_to_end, activities, r.evidence, r.token_times_ns)


def _plain(r: Request) -> bool:
    return is_plain([[a.detail for a in r.activities], [e.value for e in r.evidence]])


def _exact(r: Request) -> _Details:
    """Details with values that plain JSON has no word for."""
    rows = [_activity_row(activity) for activity in r.activities]
    rows = [(*row[:_DETAIL], msgspec.Raw(dumps(row[_DETAIL])), *row[_DETAIL + 1 :]) for row in rows]
    evidence = [e._replace(value=msgspec.Raw(dumps(e.value))) for e in r.evidence]
    return _Details(r.sections, r.sections_to_end, rows, evidence, r.token_times_ns)
