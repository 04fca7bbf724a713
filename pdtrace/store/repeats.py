"""Which of two rows of one identity stays: the answer may not depend on which came first.

Owns the rule for spans and records that come twice. Does not look anything up.

Same content (receive time aside) is a duplicate: the first stays. Other content is a conflict: the later end wins
(for records the later time), then the greater content hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from pdtrace.store.encoding import canonical, loads
from pdtrace.store.raw_rows import Row

Key = Hashable


class Identity(NamedTuple):
    """How rows of one table are compared, by position in the row."""

    key: Callable[[Row], Key]  #: for spans Span.key, which is at hand
    content_from: int  #: the first column that is content and not identity
    end: int  #: the column whose later value wins
    received: int  #: the column that is not content
    json: tuple[int, ...]  #: columns of JSON text, where the order of keys means nothing


SPAN_IDENTITY = Identity(key=lambda row: row[0] + row[1], content_from=2, end=6, received=14, json=(9, 10, 11))
RECORD_IDENTITY = Identity(key=itemgetter(0, 1), content_from=2, end=2, received=5, json=(4,))


def same_content(a: Row, b: Row, identity: Identity) -> bool:
    """Whether two rows of one identity say the same, receive time aside."""
    i = identity.received
    if a[:i] + a[i + 1 :] == b[:i] + b[i + 1 :]:
        return True
    return _content(a, identity) == _content(b, identity)


def wins(a: Row, b: Row, identity: Identity) -> bool:
    """Whether ``a`` replaces ``b``: rows of one identity and other content."""
    return _rank(a, identity) > _rank(b, identity)


@dataclass(slots=True)
class Sorted:
    """A batch after the rule: which rows to store, what to delete for them, and the counts."""

    keep: list[int] = field(default_factory=list)  #: positions of rows to store, ascending
    replaced: list[int] = field(default_factory=list)  #: positions of rows whose stored copies lose to them
    duplicates: int = 0
    conflicts: int = 0


def sort_out(
    keys: Sequence[Key], row: Callable[[int], Row], stored: Callable[[], Iterable[Row]], identity: Identity
) -> Sorted:
    """Apply the rule inside the batch, then against what is stored.

    Args:
        keys: the identities of the batch.
        row: gives the row at a position of the batch; asked only for what came twice.
        stored: gives the stored rows that have the identity of any of ``keys``; called once, if there are any.
        identity: how the rows of this table are compared.
    """
    result = Sorted()
    keep: dict[Key, int] = dict(zip(keys, range(len(keys)), strict=True))
    if len(keep) < len(keys):
        keep = _inside(keys, row, identity, result)
    for old in stored() if keys else ():
        key = identity.key(old)
        if key not in keep:
            continue  # an earlier stored copy has decided already
        new = row(keep[key])
        if same_content(new, old, identity):
            result.duplicates += 1
            del keep[key]
            continue
        result.conflicts += 1
        if wins(new, old, identity):
            result.replaced.append(keep[key])
        else:
            del keep[key]
    result.keep = sorted(keep.values())
    return result


def _inside(keys: Sequence[Key], row: Callable[[int], Row], identity: Identity, result: Sorted) -> dict[Key, int]:
    """The rule inside the batch: the position that stays of every identity."""
    keep: dict[Key, int] = {}
    for position, key in enumerate(keys):
        there = keep.setdefault(key, position)
        if there == position:
            continue
        if same_content(row(position), row(there), identity):
            result.duplicates += 1
        else:
            result.conflicts += 1
            if wins(row(position), row(there), identity):
                keep[key] = position
    return keep


def _content(row: Row, identity: Identity) -> str:
    positions = (i for i in range(identity.content_from, len(row)) if i != identity.received)
    return canonical([loads(row[i]) if i in identity.json else row[i] for i in positions])


def _rank(row: Row, identity: Identity) -> tuple[int, bytes]:
    return (row[identity.end], hashlib.blake2b(_content(row, identity).encode(), digest_size=16).digest())
