"""Which of two rows of one identity stays: the answer may not depend on which came first.

Owns the rule for spans and records that come twice. Does not look anything up.

Same content (receive time aside) is a duplicate: the first stays. Other content is a conflict: the later end wins
(for records the later time), then the greater content hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pdtrace.store.encoding import canonical, loads
from pdtrace.store.raw_rows import Row

Kept = TypeVar("Kept")


class Identity(NamedTuple):
    """How rows of one table are compared, by position in the row."""

    key: tuple[int, ...]  #: columns that make the identity
    end: int  #: the column whose later value wins
    received: int  #: the column that is not content
    json: tuple[int, ...]  #: columns of JSON text, where the order of keys means nothing


SPAN_IDENTITY = Identity(key=(0, 1), end=6, received=14, json=(9, 10, 11))
RECORD_IDENTITY = Identity(key=(0, 1), end=2, received=5, json=(4,))


def key_of(row: Row, identity: Identity) -> Hashable:
    """The identity of a row."""
    return tuple(row[i] for i in identity.key)


def same_content(a: Row, b: Row, identity: Identity) -> bool:
    """Whether two rows of one identity say the same, receive time aside."""
    i = identity.received
    if a[:i] + a[i + 1 :] == b[:i] + b[i + 1 :]:
        return True
    return _content(a, identity) == _content(b, identity)


def wins(a: Row, b: Row, identity: Identity) -> bool:
    """Whether ``a`` replaces ``b``: rows of one identity and other content."""
    return _rank(a, identity) > _rank(b, identity)


def _content(row: Row, identity: Identity) -> str:
    return canonical([loads(v) if i in identity.json else v for i, v in enumerate(row) if i != identity.received])


def _rank(row: Row, identity: Identity) -> tuple[int, bytes]:
    return (row[identity.end], hashlib.blake2b(_content(row, identity).encode(), digest_size=16).digest())


@dataclass
class Sorted(Generic[Kept]):
    """A batch after the rule: what to store, what to delete for it, and the counts."""

    keep: dict[Hashable, tuple[Row, Kept]] = field(default_factory=dict)
    replaced: list[Hashable] = field(default_factory=list)  #: stored identities that lose to a row of ``keep``
    duplicates: int = 0
    conflicts: int = 0


def sort_out(
    rows: Iterable[tuple[Row, Kept]],
    stored: Callable[[], Iterable[Row]],
    identity: Identity,
) -> Sorted[Kept]:
    """Apply the rule inside the batch, then against what is stored.

    Args:
        rows: each row with the object it was made of.
        stored: gives the stored rows that have the identity of any of ``rows``; called once, if there are any.
    """
    result: Sorted[Kept] = Sorted()
    keep = result.keep
    for row, item in rows:
        key = key_of(row, identity)
        there = keep.get(key)
        if there is None:
            keep[key] = (row, item)
        elif same_content(row, there[0], identity):
            result.duplicates += 1
        else:
            result.conflicts += 1
            if wins(row, there[0], identity):
                keep[key] = (row, item)
    for old in stored() if keep else ():
        key = key_of(old, identity)
        if key not in keep:
            continue
        if same_content(keep[key][0], old, identity):
            result.duplicates += 1
            del keep[key]
            continue
        result.conflicts += 1
        if wins(keep[key][0], old, identity):
            result.replaced.append(key)
        else:
            del keep[key]
    return result
