"""Takes the spans, logs or metrics whose strings are not UTF-8 out of a protobuf request, so that the rest can load.

Owns that one repair by omission, counted. Runs only after the strict parse refused a body.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from pdtrace.otlp.faults import Faults
from pdtrace.otlp.wire import LENIENT, LENIENT_REQUEST, LEVELS

_WHAT: Final = {"traces": "span", "logs": "log", "metrics": "point"}
_REASON: Final = "strings must be valid UTF-8"


def without_bad_text(signal: str, body: bytes, faults: Faults) -> bytes | None:
    """``body`` without the items that hold invalid UTF-8, each counted in ``faults``; None if that is not its fault."""
    request = LENIENT_REQUEST[signal]()
    try:
        request.ParseFromString(body)
    except DecodeError:
        return None
    found = 0
    outer_name, middle_name, inner_name = LEVELS[signal]
    outers = getattr(request, outer_name)
    for i in range(len(outers) - 1, -1, -1):
        middles = getattr(outers[i], middle_name)
        resource_is_bad = not _is_text(outers[i].resource)
        for j in range(len(middles) - 1, -1, -1):
            inners = getattr(middles[j], inner_name)
            scope_is_bad = resource_is_bad or not _is_text(middles[j].scope)
            for k in range(len(inners) - 1, -1, -1):
                if scope_is_bad or not _is_text(inners[k]):
                    found += _items(signal, inners[k])
                    del inners[k]
            if scope_is_bad:
                del middles[j]
        if resource_is_bad:
            del outers[i]
    faults.add(_WHAT[signal], _REASON, count=found)
    return bytes(request.SerializeToString())


def _items(signal: str, inner: Any) -> int:
    """How many spans, logs or data points one innermost message stands for."""
    if signal != "metrics":
        return 1
    return sum(len(getattr(value, "data_points", ())) for _, value in inner.ListFields())


def _is_text(message: Any) -> bool:
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if not all(map(_is_text, values)):
                return False
        elif field.full_name in LENIENT.text_fields:
            try:
                for raw in values:
                    raw.decode()
            except UnicodeDecodeError:
                return False
    return True
