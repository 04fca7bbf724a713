"""The charging rule for many requests at once: every instant of a window belongs to exactly one stage.

Owns the rule and hidden time. Does not decide what an activity or a window is (pdtrace.assemble does).

How it works. Boundaries of all activities cut a window into segments inside which nothing changes. For a segment the
set of stages in progress is a bit mask, bit = position in the table of precedence, so the stage that is charged is
the lowest set bit. A last pass splits container time into ingress, relay and egress by where the first and the last
finer segment lie. Requests of similar size are padded into one dense block (numpy broadcasting, no Python loop over
requests); a request with very many activities is swept on its own.
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
_HIDEABLE_CODES: Final = tuple(code for code, stage in enumerate(STAGES) if stage in HIDEABLE)

#: Lowest set bit of every mask of twelve stages; nothing in progress is unattributed.
_OWNER: Final = np.array(
    [(mask & -mask).bit_length() - 1 if mask else _UNATTRIBUTED for mask in range(1 << len(ACTIVITY_STAGES))],
    dtype=np.int8,
)

#: Requests with up to this many activities share dense blocks; larger ones are swept one by one.
_WIDEST_BLOCK: Final = 64
_BLOCK_WIDTHS: Final = (4, 8, 12, 16, 24, 32, 48, _WIDEST_BLOCK)
#: Requests per block: keeps the working set of one block inside the CPU caches.
_BLOCK_ROWS: Final = 2048


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
    widths = np.diff(activities.offsets)
    lower = -1
    for width in _BLOCK_WIDTHS:
        rows = np.flatnonzero((widths > lower) & (widths <= width))
        lower = width
        for first in range(0, len(rows), _BLOCK_ROWS):
            block = rows[first : first + _BLOCK_ROWS]
            pieces.append(_charge_block(block, width, t0_ns, t1_ns, activities, exposed, hidden))
    for row in np.flatnonzero(widths > _WIDEST_BLOCK):
        pieces.append(_charge_one(int(row), t0_ns, t1_ns, activities, exposed, hidden))
    return _collect(pieces, exposed, hidden)


def _charge_block(
    rows: Ints, width: int, t0_ns: Ints, t1_ns: Ints, activities: Activities, exposed: Ints, hidden: Ints
) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Charge requests of at most ``width`` activities as one dense (rows, 2 * width + 1) block of segments."""
    t0 = t0_ns[rows]
    length = (t1_ns[rows] - t0)[:, None]
    first = activities.offsets[rows]
    used = np.arange(width)[None, :] < (activities.offsets[rows + 1] - first)[:, None]
    at = np.where(used, first[:, None] + np.arange(width)[None, :], 0)
    if len(activities.stage):
        start = np.clip(activities.start_ns[at] - t0[:, None], 0, length)
        end = np.clip(activities.end_ns[at] - t0[:, None], 0, length)
        bit = np.left_shift(np.int16(1), activities.stage[at].astype(np.int16))
        used &= end > start
        start, end, bit = np.where(used, start, 0), np.where(used, end, 0), np.where(used, bit, np.int16(0))
    else:
        start = end = np.zeros((len(rows), width), dtype=np.int64)
        bit = np.zeros((len(rows), width), dtype=np.int16)
    bounds = np.concatenate([np.zeros_like(length), start, end, length], axis=1)
    bounds.sort(axis=1)
    low, high = bounds[:, :-1], bounds[:, 1:]
    mask = np.zeros(low.shape, dtype=np.int16)
    for k in range(width):
        covers = (start[:, k, None] <= low) & (low < end[:, k, None])
        mask |= covers * bit[:, k, None]
    owner = _split_containers(_OWNER[mask], high > low)
    _total(rows, mask, owner, high - low, exposed, hidden)
    row_of, stage, start_at, end_at = _merge(owner, low, high)
    return rows[row_of], stage, start_at + t0[row_of], end_at + t0[row_of]


def _charge_one(
    row: int, t0_ns: Ints, t1_ns: Ints, activities: Activities, exposed: Ints, hidden: Ints
) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Charge one large request: per stage, count open activities along the sorted boundaries."""
    t0, length = t0_ns[row], t1_ns[row] - t0_ns[row]
    part = slice(activities.offsets[row], activities.offsets[row + 1])
    start = np.clip(activities.start_ns[part] - t0, 0, length)
    end = np.clip(activities.end_ns[part] - t0, 0, length)
    stage = activities.stage[part]
    bounds = np.unique(np.concatenate([start, end, np.array([0, length])]))
    mask = np.zeros(max(len(bounds) - 1, 0), dtype=np.int16)
    for code in np.unique(stage):
        mine = (stage == code) & (end > start)
        opened = np.bincount(np.searchsorted(bounds, start[mine]), minlength=len(bounds))
        closed = np.bincount(np.searchsorted(bounds, end[mine]), minlength=len(bounds))
        mask |= (np.cumsum(opened - closed)[:-1] > 0).astype(np.int16) << int(code)
    low, high = bounds[None, :-1], bounds[None, 1:]
    owner = _split_containers(_OWNER[mask][None, :], high > low)
    rows = np.array([row])
    _total(rows, mask[None, :], owner, high - low, exposed, hidden)
    row_of, section_stage, start_at, end_at = _merge(owner, low, high)
    return rows[row_of], section_stage, start_at + t0, end_at + t0


def _split_containers(owner: npt.NDArray[np.int8], alive: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """Container time is ingress before the first finer segment, egress after the last, relay between them.

    A request without any finer segment holds nothing in its containers: their time is unattributed.
    """
    fine = (owner < _CONTAINER) & alive
    before = np.cumsum(fine, axis=1) == 0
    after = np.cumsum(fine[:, ::-1], axis=1)[:, ::-1] == 0
    split = np.where(before, np.int8(_INGRESS), np.where(after, np.int8(_EGRESS), np.int8(_RELAY)))
    split = np.where(before & after, np.int8(_UNATTRIBUTED), split)
    result: npt.NDArray[np.int8] = np.where(owner == _CONTAINER, split, owner)
    return result


def _total(
    rows: Ints, mask: npt.NDArray[np.int16], owner: npt.NDArray[np.int8], length: Ints, exposed: Ints, hidden: Ints
) -> None:
    """Sum exposed and hidden time by stage into the given (N, 15) tables."""
    for code in np.unique(owner[length > 0]):
        exposed[rows, code] = np.where(owner == code, length, 0).sum(axis=1)
    present = int(np.bitwise_or.reduce(mask, axis=None)) if mask.size else 0
    for code in _HIDEABLE_CODES:
        if present >> code & 1:
            union = np.where(mask & np.int16(1 << code) != 0, length, 0).sum(axis=1)
            hidden[rows, code] = union - exposed[rows, code]


def _merge(owner: npt.NDArray[np.int8], low: Ints, high: Ints) -> tuple[Ints, npt.NDArray[np.int8], Ints, Ints]:
    """Join neighbouring segments of one request and one stage; drop empty segments."""
    row_of, column = np.nonzero(high > low)
    stage = owner[row_of, column]
    new = np.ones(len(row_of), dtype=bool)
    new[1:] = (row_of[1:] != row_of[:-1]) | (stage[1:] != stage[:-1])
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(row_of))[: len(first)] - 1
    return (
        row_of[first],
        stage[first],
        low[row_of[first], column[first]],
        high[row_of[last], column[last]],
    )


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
