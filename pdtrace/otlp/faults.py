"""What is wrong with a span, log or point as it came, and the tally of what was therefore not kept.

Owns the rules and their sentences, so that every decoder says the same. Does not parse any encoding.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from pdtrace.model import Rejection

INT64_MAX: Final = 2**63 - 1
DAY_NS: Final = 86_400 * 10**9
_SHOWN_CHARACTERS: Final = 80


class Undecodable(ValueError):
    """The whole body cannot be read; the text says what is wrong and what would be right."""


class BadField(ValueError):
    """One field of one span, log or point cannot be read; only that item is lost."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of one value is kept."""

    text_bytes: int = 64 * 1024  #: longest string or bytes value of a span or point, in UTF-8 bytes
    log_text_bytes: int = 1024 * 1024  #: the same in logs: Dynamo ships whole request traces in one attribute
    depth: int = 64  #: deepest nesting of arrays and maps in one attribute
    future_ns: int = DAY_NS  #: a start further than this after the receive time is a broken clock
    file_future_ns: int = 3650 * DAY_NS  #: the same for files, after the time they are read


@dataclass(slots=True)
class Faults:
    """Tally of one body's faults: equal faults are counted once each and the first one is shown."""

    where: str
    _tally: dict[tuple[str, str], Rejection] = field(default_factory=dict)

    def add(self, what: str, reason: str, example: str = "", count: int = 1) -> None:
        """Count ``count`` faults of the kind (what, reason); ``example`` names the first."""
        known = self._tally.get((what, reason))
        if known is not None:
            known.count += count
            return
        text = f"{reason} (first: {shown(example)})" if example else reason
        self._tally[(what, reason)] = Rejection(what, self.where, text, count)

    def clear(self) -> None:
        """Forget all of them: the body is read again from its start."""
        self._tally.clear()

    def rejections(self) -> list[Rejection]:
        """Every kind of fault with its count, in the order first seen."""
        return list(self._tally.values())


def shown(text: str) -> str:
    """``text`` short enough for a sentence."""
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def latest_start(received_ns: int, limits: Limits) -> int:
    """Latest start that is believed, Unix ns.

    A file (received 0) has no receive time: it is compared with this machine's clock, with years of room because a
    wrong clock here must not refuse a good recording.
    """
    if received_ns > 0:
        return min(received_ns + limits.future_ns, INT64_MAX)
    return min(time.time_ns() + limits.file_future_ns, INT64_MAX)


def span_fault(trace_id: str, span_id: str, start_ns: int, end_ns: int, latest_ns: int) -> str | None:
    """Why a span cannot be kept, or None. Ids are hex of any length; end 0 means still open; end < start is kept.

    Source: opentelemetry-proto, trace.proto (ids), docs/specification.md (partial success).
    """
    if len(trace_id) != 32:
        return "trace_id must be 16 bytes"
    if not trace_id.strip("0"):
        return "trace_id must not be all zeros"
    if len(span_id) != 16:
        return "span_id must be 8 bytes"
    if not span_id.strip("0"):
        return "span_id must not be all zeros"
    if start_ns < 0 or end_ns < 0:
        return "start and end times must not be negative"
    if start_ns > INT64_MAX or end_ns > INT64_MAX:
        return "start and end times must be Unix nanoseconds below 2**63"
    if start_ns == 0:
        return "start time must be set (it is 0)"
    if start_ns > latest_ns:
        return "start time is more than a day after the receive time: check the sender's clock and unit (ns)"
    return None


def parent_or_root(parent_id: str, faults: Faults, name: str) -> str:
    """The parent's id as 16 hex digits, "" for a root; any other length is a root too, and counted."""
    if len(parent_id) == 16:
        return parent_id if parent_id.strip("0") else ""
    if parent_id:
        faults.add("parent", "parent_span_id must be 8 bytes: the span was kept as a root", f"span {name}")
    return ""


def cut_text(text: str, limit: int, faults: Faults, name: str) -> str:
    """``text`` of at most ``limit`` UTF-8 bytes, cut between characters; a cut is counted."""
    if len(text) * 4 <= limit:  # no character needs more than four bytes
        return text
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= limit:
        return text
    faults.add("attribute", f"a value longer than {limit} bytes was cut there", name)
    return encoded[:limit].decode("utf-8", "ignore")


def cut_bytes(value: bytes, limit: int, faults: Faults, name: str) -> bytes:
    """``value`` of at most ``limit`` bytes; a cut is counted."""
    if len(value) <= limit:
        return value
    faults.add("attribute", f"a value longer than {limit} bytes was cut there", name)
    return value[:limit]
