"""Answers as JSON.

Owns how values that JSON lacks are written. Light to import: the command line prints through it.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

import orjson

JSON: Final = "application/json"


def to_json(answer: Any) -> bytes:
    """``answer`` as JSON. Bytes become base64 text; NaN and infinities become the strings of OTLP/JSON."""
    return orjson.dumps(_plain(answer))


def _plain(value: Any) -> Any:
    # orjson writes NaN as null, which would read as "unknown": an attribute that says NaN keeps saying so.
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {"unknown" if key is None else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64:
        return str(value)  # orjson refuses it; worker ids are strings for the same reason
    return value
