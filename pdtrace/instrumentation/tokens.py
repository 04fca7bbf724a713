"""Times of a request's tokens where a decode loop makes them: eight bytes a token and no object.

Owns the compact store of (stamp, count). A list of pairs costs about fifteen times the memory, which a batch of
hundreds of long answers feels.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from typing import Final

from pdtrace.instrumentation.record import Record

log = logging.getLogger(__name__)

#: Chunks of one answer: a megabyte here, and less than the four of a gRPC message on the wire.
MOST_CHUNKS: Final = 1 << 17


class TokenTimeline:
    """When chunks of an answer left, as differences. One thread at a time.

    Args:
        record: The edge record that it belongs to; ``record.tokens`` goes into the timeline from then on. None: give it
            to one later with ``attach``.
        limit: Chunks that are kept. An answer with more keeps its first stamp alone and is told without token times,
            because half of them would be taken for all; ``left_out`` says how many are not there.
    """

    __slots__ = ("_counts", "_deltas_ns", "_last_ns", "_limit", "left_out")

    def __init__(self, record: Record | None = None, *, limit: int = MOST_CHUNKS) -> None:
        self._deltas_ns = array("q")
        self._counts: array[int] | None = None  #: made at the first chunk that is not one token
        self._last_ns = 0
        self._limit = max(1, limit)
        self.left_out = 0  #: chunks beyond the limit, and those given up for it
        if record is not None:
            self.attach(record)

    def attach(self, record: Record) -> None:
        """Make this the token times of ``record``; what that had before is kept."""
        if record.recording and record.token_stamps is not self:
            for stamp in record.token_stamps or ():
                self.append(stamp)
            record.token_stamps = self

    def step(self, at_ns: int, count: int = 1) -> None:
        """``count`` tokens left at a stamp of the recorder's clock: one reading serves a whole batch."""
        if self.left_out:
            self.left_out += 1
            return
        try:
            if count != 1 and self._counts is None:
                self._counts = array("q", [1]) * len(self._deltas_ns)
            if self._counts is not None:
                self._counts.append(count)
            self._deltas_ns.append(at_ns - self._last_ns)
            self._last_ns = at_ns
        except (TypeError, OverflowError) as problem:  # a decode loop must not end for a stamp
            if self._counts is not None:
                del self._counts[len(self._deltas_ns) :]
            log.warning("pdtrace: a token stamp that is none was left out: %s", problem)
        if len(self._deltas_ns) > self._limit:
            self._give_up()

    def _give_up(self) -> None:
        """Keep the earliest stamp only: it is the first token's."""
        first_ns, count = min(self)
        self.left_out = len(self._deltas_ns) - 1
        self._deltas_ns, self._counts = array("q", [first_ns]), array("q", [count])
        log.warning("pdtrace: an answer of more than %d chunks is told without token times", self._limit)

    def append(self, stamp: tuple[int, int]) -> None:
        """``step`` with a pair, as a list of stamps takes it."""
        self.step(stamp[0], stamp[1])

    def __len__(self) -> int:
        return len(self._deltas_ns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(stamp, tokens) of each chunk that is kept, in the order they were said."""
        at_ns = 0
        counts = self._counts
        for number, delta_ns in enumerate(self._deltas_ns):
            at_ns += delta_ns
            yield at_ns, 1 if counts is None else counts[number]
