"""Server-sent events out of bytes that may be split anywhere: lines, fields, events.

Owns framing and its memory bound. Does not know what an event says, and never changes or keeps the bytes it is shown.

Source: HTML Living Standard, section 9.2 (server-sent events).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_LINE_END: Final = re.compile(rb"\r\n?|\n")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LF: Final = 10
MAX_EVENT_BYTES: Final = 1 << 20


class Event(NamedTuple):
    """One event, complete as soon as the blank line after it is."""

    name: str  #: the last `event:` field; "" = none
    data: bytes | None  #: the `data:` lines joined by newlines; None = longer than the reader keeps


class SseReader:
    """Finds the events of one stream; the same ones however the stream is cut.

    Args:
        max_event_bytes: The most that is kept of an event that is not complete yet; a longer one is reported without
            its data.
    """

    __slots__ = (
        "_after_cr",
        "_between",
        "_data",
        "_dropping",
        "_first",
        "_line",
        "_max",
        "_name",
        "_oversized",
        "_size",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._between = False  # nothing of a line or an event is waiting for more
        self._line = bytearray()  # a line whose end has not come yet
        self._dropping = False  # that line grew too long; what follows of it is dropped
        self._first = True  # the next line is the stream's first
        self._after_cr = False  # a line feed right now would belong to the last line end
        self._data: list[bytes] = []
        self._size = 0  # bytes in _data
        self._name = ""
        self._oversized = False

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that ``chunk`` completes, in order."""
        if not chunk:
            return []
        if self._between and _is_one_event(chunk) and len(chunk) <= self._max:
            return [Event("", chunk[6:-2])]  # the usual case, a token: a third of the time
        self._between = False
        events: list[Event] = []
        at = 1 if self._after_cr and chunk[0] == _LF else 0
        self._after_cr = False
        for match in _LINE_END.finditer(chunk, at):
            self._grow(chunk, at, match.start())
            self._end_line(events)
            at = match.end()
            self._after_cr = match.group() == b"\r" and at == len(chunk)
        self._grow(chunk, at, len(chunk))
        self._between = not (self._first or self._after_cr or self._line or self._dropping or self._in_event())
        return events

    def _in_event(self) -> bool:
        return bool(self._data or self._name or self._oversized)

    def close(self) -> list[Event]:
        """What is left at the end of the stream: an event whose blank line never came is read all the same."""
        events: list[Event] = []
        if self._line or self._dropping:
            self._end_line(events)
        self._dispatch(events)
        return events

    def _grow(self, chunk: bytes, start: int, end: int) -> None:
        if start == end or self._dropping:
            return
        room = self._max - self._size - len(self._line)
        self._line += chunk[start : min(end, start + room)]
        self._dropping = end - start > room

    def _end_line(self, events: list[Event]) -> None:
        line, dropped = bytes(self._line), self._dropping
        self._line.clear()
        self._dropping = False
        if self._first:
            line, self._first = line.removeprefix(_BYTE_ORDER_MARK), False
        if dropped:
            self._oversized = self._oversized or not line.startswith(b":")  # a long comment is still a comment
        elif not line:
            self._dispatch(events)
        else:
            self._read_field(line)

    def _read_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")  # a comment has an empty field
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif field == b"event":
            self._name = value[:200].decode(errors="replace")

    def _dispatch(self, events: list[Event]) -> None:
        if self._oversized:
            events.append(Event(self._name, None))
        elif self._data:
            events.append(Event(self._name, b"\n".join(self._data)))
        self._data, self._size, self._name, self._oversized = [], 0, "", False


def _is_one_event(chunk: bytes) -> bool:
    """Whether ``chunk`` is one data line and its blank line, and nothing else."""
    return (
        chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and chunk.find(b"\n") == len(chunk) - 2 and b"\r" not in chunk
    )
