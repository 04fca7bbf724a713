"""What only the page of one request shows, as one JSON text a request: written in one go, read by no scan.

Owns the form of column ``details``: ``{"sections": [[stage, start_ns, end_ns], ...], "sections_to_end": the same,
"activities": [{field: value, ...}, ...], "evidence": [[name, value, unit, text, span_id], ...],
"token_times_ns": [ns, ...]}``. Telemetry's own values in it are typed JSON (encoding.py). Does not touch a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Final, cast

import msgspec
import orjson
import pyarrow as pa

from pdtrace.model import Activity, Evidence, Request, Section, Value
from pdtrace.store.encoding import dumps, is_plain


class _Details(msgspec.Struct, gc=False):
    sections: list[Section]
    sections_to_end: list[Section]
    activities: list[Activity]
    evidence: list[Evidence]
    token_times_ns: list[int]


#: Every field of an activity, with the value it has where the text leaves it out.
_ACTIVITY: Final = asdict(Activity("", 0, 0))

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
    details["activities"] = [_ACTIVITY | activity for activity in details["activities"]]
    details["evidence"] = [dict(zip(Evidence._fields, values, strict=True)) for values in details["evidence"]]
    return details


def _details(r: Request) -> _Details:
    return _Details(r.sections, r.sections_to_end, r.activities, r.evidence, r.token_times_ns)


def _plain(r: Request) -> bool:
    return is_plain([[a.detail for a in r.activities], [e.value for e in r.evidence]])


def _exact(r: Request) -> _Details:
    """Details with values that plain JSON has no word for."""
    activities = [replace(a, detail=cast("dict[str, Value]", msgspec.Raw(dumps(a.detail)))) for a in r.activities]
    evidence = [e._replace(value=msgspec.Raw(dumps(e.value))) for e in r.evidence]
    return _Details(r.sections, r.sections_to_end, activities, evidence, r.token_times_ns)
