"""Playing recordings in a loop: which span is due when.

Owns the schedule of a track. Reads no clock and sends nothing: time comes in, messages go out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from pdtrace.demo.recording import Item, Recording
from pdtrace.demo.retell import Retelling

_PAUSE_NS = 500_000_000  # between two recordings


class Track:
    """Recordings played one after the other, for ever, at recorded speed."""

    def __init__(self, recordings: Sequence[Recording], start_ns: int, tag: str) -> None:
        self._recordings = recordings
        self._tag = tag
        self._loop = -1
        self._next_start_ns = start_ns
        self._items: Iterator[Item] = iter(())
        self._pending: Item | None = None
        self._retelling: Retelling | None = None
        self._shift_ns = 0
        self._begin()

    def _begin(self) -> None:
        self._loop += 1
        recording = self._recordings[self._loop % len(self._recordings)]
        self._shift_ns = self._next_start_ns - recording.start_ns
        self._retelling = Retelling(recording.start_ns, recording.end_ns, self._shift_ns, f"{self._tag}{self._loop:x}")
        self._next_start_ns = recording.end_ns + self._shift_ns + _PAUSE_NS
        self._items = iter(recording.items)
        self._pending = next(self._items, None)

    def due(self, now_ns: int) -> Iterator[Item]:
        """What could have been sent by ``now_ns`` (Unix ns) and was not yet given out, retold."""
        while True:
            if self._pending is None:
                if self._next_start_ns > now_ns:
                    return
                self._begin()
                continue
            item = self._pending
            if item.ready_ns + self._shift_ns > now_ns:
                return
            assert self._retelling is not None
            message = item.message
            retold = self._retelling.span(message) if isinstance(message, Span) else self._retelling.log(message)
            yield Item(item.ready_ns + self._shift_ns, item.resource, item.scope, retold)
            self._pending = next(self._items, None)
