"""The charging rule for many requests at once: every instant of a window belongs to exactly one stage.

Owns the rule and hidden time. Does not decide what an activity or a window is (pdtrace.assemble does).

How it works. Boundaries of all activities cut a window into segments inside which nothing changes. One word counts what
is in progress in a segment: five bits a stage, in the order of precedence, so the stage that is charged is where the
lowest set bit lies. A last pass splits container time into ingress, relay and egress by where the first and the last
finer segment lie. Requests of similar size are padded into one dense block (numpy broadcasting, no Python loop over
requests); requests with many activities are swept one after the other in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pdtrace.stages import ACTIVITY_STAGES, HIDEABLE, STAGES

Ints = npt.NDArray[np.int64]

CODE_OF_STAGE: Final[dict[str, int]] = {stage: code for code, stage in enumerate(ACTIVITY_STAGES)}
_CONTAINER: Final = CODE_OF_STAGE["container"]
_INGRESS, _RELAY, _EGRESS, _UNATTRIBUTED = (STAGES.index(s) for s in ("ingress", "relay", "egress", "unattributed"))
_NOT_HIDEABLE: Final = [code for code, stage in enumerate(STAGES) if stage not in HIDEABLE]

#: Bits that count one stage's activities in progress. They hold every count of a dense block.
_COUNT_BITS: Final = 5
#: Requests with up to this many activities share dense blocks; wider ones are swept.
_WIDEST_BLOCK: Final = (1 << _COUNT_BITS) - 1
_BLOCK_WIDTHS: Final = (4, 8, 12, 16, 24, _WIDEST_BLOCK)
#: Requests per block: the working set stays near the caches, and the arrays large enough for the allocator to keep.
_BLOCK_ROWS: Final = 2048

#: Stage by the position of the lowest set bit of a word of counts; the bit above all stages is always set.
_NOBODY: Final = np.int64(1 << _COUNT_BITS * len(ACTIVITY_STAGES))
_OWNER: Final = np.array(
    [code for code in (*range(len(ACTIVITY_STAGES)), _UNATTRIBUTED) for _ in range(_COUNT_BITS)], dtype=np.int8
)
#: All bits of a stage in a word of counts.
_FIELD: Final = np.array(
    [_WIDEST_BLOCK << _COUNT_BITS * code for code in range(len(ACTIVITY_STAGES))]
    + [0] * (len(STAGES) - len(ACTIVITY_STAGES)),
    dtype=np.int64,
)

#: A boundary is one sortable integer, time << 5 | event: 2 * stage starts, 2 * stage + 1 ends, or nothing happens.
_EVENT_BITS: Final = 5
_NO_EVENT: Final = 2 * len(ACTIVITY_STAGES)
#: What each event adds to the word of counts.
_CHANGE: Final = np.array(
    [sign << _COUNT_BITS * code for code in range(len(ACTIVITY_STAGES)) for sign in (1, -1)] + [0, 0], dtype=np.int64
)
#: Windows this long (nine years) leave no room for the event.
_TOO_LONG_NS: Final = 1 << 62 - _EVENT_BITS


class Activities(NamedTuple):
    """Ragged activities of N requests: those of request i are rows offsets[i] to offsets[i+1]."""

    offsets: Ints  #: (N+1,)
    stage: npt.NDArray[np.int8]  #: (M,) codes of CODE_OF_STAGE
    start_ns: Ints  #: (M,)
    end_ns: Ints  #: (M,) end <= start means zero length: such an activity changes nothing


class Charged(NamedTuple):
    """Sections of N requests, in order and tiling each window, and their totals."""

    offsets: Ints  #: (N+1,) sections of request i are rows offsets[i] to offsets[i+1]
    stage: npt.NDArray[np.int8]  #: (S,) index into stages.STAGES
    start_ns: Ints  #: (S,)
    end_ns: Ints  #: (S,)
    exposed_ns: Ints  #: (N, 15) charged time by stage; each row sums to the length of its window
    hidden_ns: Ints  #: (N, 15) union of a stage's activities inside the window minus exposed; 0 where meaningless


def charge(t0_ns: Ints, t1_ns: Ints, activities: Activities) -> Charged:
    """Charge every window [t0, t1] to stages.

    Args:
        t0_ns, t1_ns: (N,) window bounds on the clock of the activities, t1 >= t0.
        activities: Of the same N requests; parts outside the window are ignored.

    Returns:
        Sections that are disjoint, ordered and tile each window; their integer sum is t1 - t0.

    Raises:
        ValueError: A window ends before it starts.
    """
    if np.any(t1_ns < t0_ns):
        bad = int(np.argmax(t1_ns < t0_ns))
        raise ValueError(f"window {bad} ends at {t1_ns[bad]} ns, before its start at {t0_ns[bad]} ns")
    count = len(t0_ns)
    exposed = np.zeros((count, len(STAGES)), dtype=np.int64)
    hidden = np.zeros((count, len(STAGES)), dtype=np.int64)
    pieces: list[tuple[Ints, npt.NDArray[np.int8], Ints, Ints]] = []
    widths = np.where(t1_ns - t0_ns < _TOO_LONG_NS, np.diff(activities.offsets), _WIDEST_BLOCK + 1)
    lower = -1
    for width in _BLOCK_WIDTHS:
        rows = np.flatnonzero((widths > lower) & (widths <= width))
        lower = width
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            pieces.append(_charge_block(block, width, t0_ns, t1_ns, activities, exposed, hidden))
    wide = np.flatnonzero(widths > _WIDEST_BLOCK)
    if len(wide):
        pieces.append(_charge_wide(wide, t0_ns, t1_ns, activities, exposed, hidden))
    return _collect(pieces, exposed, hidden)


def _charge_block(
    rows: Ints, width: int, t0_ns: Ints, t1_ns: Ints, activities: Activities, exposed: Ints, hidden: Ints
) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Charge requests of at most ``width`` activities as one dense (rows, 2 * width + 1) block of segments."""
    t0, length = t0_ns[rows, None], (t1_ns[rows] - t0_ns[rows])[:, None]
    first, column = activities.offsets[rows, None], np.arange(width)
    used = column < activities.offsets[rows + 1, None] - first
    bounds = np.full((len(rows), 2 * width + 2), _NO_EVENT, dtype=np.int64)
    if len(activities.stage):
        at = np.where(used, first + column, 0)
        start = np.clip(activities.start_ns[at] - t0, 0, length)
        end = np.clip(activities.end_ns[at] - t0, 0, length)
        # Padding, and what has no length in the window, cuts a segment where nothing changes.
        event = np.where(used & (end > start), activities.stage[at] * np.int8(2), np.int8(_NO_EVENT))
        bounds[:, 1 : width + 1] = start << _EVENT_BITS | event
        bounds[:, width + 1 : -1] = end << _EVENT_BITS | event + np.int8(1)
    bounds[:, -1:] = length << _EVENT_BITS | _NO_EVENT
    bounds.sort(axis=1)
    counts = _CHANGE[bounds & (1 << _EVENT_BITS) - 1].cumsum(axis=1)[:, :-1]
    bounds >>= _EVENT_BITS
    low, length = bounds[:, :-1], np.diff(bounds, axis=1)
    row, segment = np.nonzero(length)
    segments = row, low[row, segment], length[row, segment], counts[row, segment]
    return _sections(rows, *segments, t0_ns, exposed, hidden)


def _charge_wide(
    rows: Ints, t0_ns: Ints, t1_ns: Ints, activities: Activities, exposed: Ints, hidden: Ints
) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Charge requests of any width: per stage, count open activities along the sorted boundaries of all of them."""
    first, width = activities.offsets[rows], activities.offsets[rows + 1] - activities.offsets[rows]
    row, each = np.repeat(np.arange(len(rows)), width), np.arange(len(rows))
    at = np.arange(len(row)) + np.repeat(first - (np.cumsum(width) - width), width)
    whole = t1_ns[rows] - t0_ns[rows]
    start = np.clip(activities.start_ns[at] - t0_ns[rows][row], 0, whole[row])
    end = np.clip(activities.end_ns[at] - t0_ns[rows][row], 0, whole[row])
    kept = end > start
    row, start, end, stage = row[kept], start[kept], end[kept], activities.stage[at][kept]
    time = np.concatenate([start, end, np.zeros_like(whole), whole])
    row = np.concatenate([row, row, each, each])
    nothing = np.full(2 * len(rows), -1, dtype=np.int8)
    changed = np.concatenate([stage, stage, nothing])
    by = np.repeat(np.array([1, -1, 0]), [len(stage), len(stage), len(nothing)])
    order = np.lexsort((time, row))
    time, row, changed, by = time[order], row[order], changed[order], by[order]
    counts = np.zeros(len(order), dtype=np.int64)
    for code in np.unique(stage):
        # Nothing is open between two requests. Only whether it is in progress: how often might not fit the bits.
        running = np.cumsum(np.where(changed == code, by, 0)) > 0
        counts |= running.astype(np.int64) << _COUNT_BITS * int(code)
    segment = np.flatnonzero((row[1:] == row[:-1]) & (time[1:] > time[:-1]))
    length = time[segment + 1] - time[segment]
    return _sections(rows, row[segment], time[segment], length, counts[segment], t0_ns, exposed, hidden)


def _sections(
    rows: Ints, row: Ints, low: Ints, length: Ints, counts: Ints, t0_ns: Ints, exposed: Ints, hidden: Ints
) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Charge the segments of ``rows``: place in ``rows``, start, length and what is in progress, all (K,), in order.

    Returns:
        Request, stage, start and end of every section; totals are set in ``exposed`` and ``hidden``.
    """
    stage = _lowest(counts)
    owner = _split_containers(stage, row, len(rows))
    exposed[rows] = _totals(row, owner, length, len(rows))
    hidden[rows] = _hidden(row, counts & ~_FIELD[stage], length, len(rows))
    # Neighbours of one request and one stage are one section; it ends where the next begins.
    new = np.ones(len(row), dtype=bool)
    new[1:] = (row[1:] != row[:-1]) | (owner[1:] != owner[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(row))[: len(first)] - 1
    t0 = t0_ns[rows[row[first]]]
    return rows[row[first]], owner[first], t0 + low[first], t0 + low[last] + length[last]


def _lowest(counts: Ints) -> npt.NDArray[np.int8]:
    """Stage of the lowest set bit: the bits below it are as many as its position."""
    marked = counts | _NOBODY
    stage: npt.NDArray[np.int8] = _OWNER[np.bitwise_count((marked & -marked) - 1)]
    return stage


def _split_containers(stage: npt.NDArray[np.int8], row: Ints, count: int) -> npt.NDArray[np.int8]:
    """Container time is ingress before the first finer segment, egress after the last, relay between them.

    A request without any finer segment holds nothing in its containers: their time is unattributed.
    """
    fine = np.flatnonzero(stage < _CONTAINER)
    first, last = np.full(count, len(stage)), np.full(count, -1)
    first[row[fine[::-1]]] = fine[::-1]  # of several values for one place the last one stays
    last[row[fine]] = fine
    at = np.flatnonzero(stage == _CONTAINER)
    before, after = at < first[row[at]], at > last[row[at]]
    owner = stage.copy()
    owner[at] = np.where(before & after, _UNATTRIBUTED, np.where(before, _INGRESS, np.where(after, _EGRESS, _RELAY)))
    return owner


def _totals(row: Ints, stage: npt.NDArray[np.int8], length: Ints, count: int) -> Ints:
    """(count, 15) sums of ``length`` by row and stage."""
    totals = np.zeros(count * len(STAGES), dtype=np.int64)
    np.add.at(totals, row * len(STAGES) + stage, length)
    return totals.reshape(count, len(STAGES))


def _hidden(row: Ints, counts: Ints, length: Ints, count: int) -> Ints:
    """(count, 15) time of the stages still set in ``counts``, after the owner's bits were taken out, stage by stage."""
    hidden = np.zeros((count, len(STAGES)), dtype=np.int64)
    while True:
        left = np.flatnonzero(counts)
        if not len(left):
            hidden[:, _NOT_HIDEABLE] = 0
            return hidden
        row, counts, length = row[left], counts[left], length[left]
        stage = _lowest(counts)
        hidden += _totals(row, stage, length, count)
        counts = counts & ~_FIELD[stage]


def _collect(pieces: Sequence[tuple[Ints, npt.NDArray[np.int8], Ints, Ints]], exposed: Ints, hidden: Ints) -> Charged:
    """Put the sections of all blocks back into the order of the requests."""
    count = len(exposed)
    if not pieces:
        empty = np.zeros(0, dtype=np.int64)
        return Charged(np.zeros(count + 1, dtype=np.int64), empty.astype(np.int8), empty, empty, exposed, hidden)
    row_of = np.concatenate([piece[0] for piece in pieces])
    order = np.argsort(row_of, kind="stable")
    offsets = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(row_of, minlength=count), out=offsets[1:])
    return Charged(
        offsets,
        np.concatenate([piece[1] for piece in pieces])[order],
        np.concatenate([piece[2] for piece in pieces])[order],
        np.concatenate([piece[3] for piece in pieces])[order],
        exposed,
        hidden,
    )
