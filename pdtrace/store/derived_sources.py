"""Which sources may have gone into a stored request, so that nothing is searched for what was never there.

Owns hashes of sources in memory. Asks no database: an answer of "may be" is looked up by the caller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

MOST_KNOWN: Final = 1_000_000  #: about 70 MB; beyond it every source may have


class DerivedSources:
    """Sources that stored requests were made of.

    Args:
        stored: those of the requests stored so far; None if they are too many to keep in memory.
    """

    def __init__(self, stored: Iterable[str] | None) -> None:
        self._hashes: set[int] | None = None if stored is None else set(map(hash, stored))

    def suspects(self, sources: Collection[str]) -> list[str]:
        """Sources that a stored request may have been made of; all others surely went into none."""
        if self._hashes is None:
            return list(sources)
        return [source for source in sources if hash(source) in self._hashes]

    def add(self, sources: Iterable[str]) -> None:
        """Remember sources of requests that are stored, or about to be: one too many does no harm."""
        if self._hashes is not None:
            self._hashes.update(map(hash, sources))
            if len(self._hashes) > MOST_KNOWN:
                self._hashes = None

    def clear(self) -> None:
        """No request is stored any more."""
        self._hashes = set()
