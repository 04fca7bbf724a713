"""What only the page of one request shows, as one JSON text a request: written in one go, read by no scan.

Owns the form of column ``details``: ``{"sections": [[stage, start_ns, end_ns], ...], "sections_to_end": the same,
"activities": [{field: value, ...}, ...], "evidence": [[name, value, unit, text, span_id], ...],
"token_times_ns": [ns, ...]}``. Telemetry's own values in it are typed JSON (encoding.py). Does not touch a database.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

import msgspec
import orjson

from pdtrace.model import Activity, Evidence, Request, Section, Value
from pdtrace.store.encoding import dumps, is_plain


class _Details(msgspec.Struct, gc=False):
    sections: list[Section]
    sections_to_end: list[Section]
    activities: list[Activity]
    evidence: list[Evidence]
    token_times_ns: list[int]


_encode: Final = msgspec.json.Encoder().encode


def details_texts(requests: Sequence[Request]) -> list[bytes]:
    """The JSON text of each request's details, UTF-8.

    Raises:
        ValueError, TypeError: a value that no telemetry can hold (e.g. a lone surrogate).
    """
    values = [[[a.detail for a in r.activities if a.detail], [e.value for e in r.evidence]] for r in requests]
    if is_plain(values):
        return [_encode(_details(r)) for r in requests]
    return [_encode(_details(r) if is_plain(v) else _exact(r)) for r, v in zip(requests, values, strict=True)]


def read_details(text: str) -> dict[str, Any]:
    """What ``details_texts`` wrote; activities and evidence as rows by name."""
    details: dict[str, Any] = orjson.loads(text)
    details["evidence"] = [dict(zip(Evidence._fields, values, strict=True)) for values in details["evidence"]]
    return details


def _details(r: Request) -> _Details:
    return _Details(r.sections, r.sections_to_end, r.activities, r.evidence, r.token_times_ns)


def _exact(r: Request) -> _Details:
    """Details with values that plain JSON has no word for."""
    activities = [replace(a, detail=cast("dict[str, Value]", msgspec.Raw(dumps(a.detail)))) for a in r.activities]
    evidence = [e._replace(value=msgspec.Raw(dumps(e.value))) for e in r.evidence]
    return _Details(r.sections, r.sections_to_end, activities, evidence, r.token_times_ns)
