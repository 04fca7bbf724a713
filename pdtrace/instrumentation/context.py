"""W3C trace context, version 00: ``traceparent`` in and out."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class Context(NamedTuple):
    """The caller's span."""

    trace_id: bytes  #: 16 bytes
    span_id: bytes  #: 8 bytes
    sampled: bool


def parse(traceparent: Any) -> Context | None:
    """The context of a header; None if there is none or it is not valid (W3C says: then start anew). Never raises."""
    if not isinstance(traceparent, str):
        return None
    found = _FORM.fullmatch(traceparent.strip(" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return Context(bytes.fromhex(trace_id), bytes.fromhex(span_id), bool(int(flags, 16) & 1))


def render(trace_id: bytes, span_id: bytes, *, sampled: bool) -> str:
    """A header."""
    return f"00-{trace_id.hex()}-{span_id.hex()}-{'01' if sampled else '00'}"
