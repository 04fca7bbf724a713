"""Which spans of a batch may be stored already, so that the table is asked about those only.

Owns hashes of identities in memory. Asks no database: an answer of "may be" is looked up by the caller.

Looking a batch up costs as much as reading every span that started near it, which grows with the load; nearly all
spans come once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdtrace.model import Span

#: Copies of one span may disagree about its start by this much and are still recognised.
SAME_SPAN_WITHIN_NS: Final = 600 * 10**9

_MOST_KNOWN: Final = 1_000_000  #: about 70 MB


class Seen:
    """Identities of the spans that this process stored, and until when others may have.

    Args:
        unknown_until_ns: latest start of spans that are stored and were not given to ``add``; None if there are none.
    """

    def __init__(self, unknown_until_ns: int | None) -> None:
        self._unknown_until_ns = unknown_until_ns
        self._hashes: set[int] = set()
        self._latest_ns = 0

    def suspects(self, spans: Sequence[Span]) -> list[int]:
        """Positions of the spans that may be stored already; all others surely are not."""
        hashes = [hash(span.key) for span in spans]
        near_ns = 0 if self._unknown_until_ns is None else self._unknown_until_ns + SAME_SPAN_WITHIN_NS
        if self._hashes.isdisjoint(hashes) and all(span.start_ns > near_ns for span in spans):
            return []
        return [i for i, span in enumerate(spans) if span.start_ns <= near_ns or hashes[i] in self._hashes]

    def add(self, spans: Sequence[Span]) -> None:
        """Remember spans that are stored now."""
        self._hashes.update([hash(span.key) for span in spans])
        self._latest_ns = max(self._latest_ns, max((span.start_ns for span in spans), default=0))
        if len(self._hashes) > _MOST_KNOWN:
            self._hashes.clear()
            self._unknown_until_ns = max(self._latest_ns, self._unknown_until_ns or 0)
