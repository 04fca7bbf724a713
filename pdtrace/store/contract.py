"""The Store contract: raw telemetry as it came, and tables derived from it that can be rebuilt.

Owns the protocol. The conformance suite in tests/store runs it on every backend.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from pdtrace.model import Batch, Record, Request, Span


class StoreError(Exception):
    """The store cannot be opened, read or written; the text is one sentence for the user: what, and what to do."""


class Added(NamedTuple):
    """What ``add`` did with a batch."""

    spans: list[Span]  #: stored now: new, or winning over a stored span of the same id with other content
    records: list[Record]  #: stored now
    duplicates: int  #: spans and records that were there already, same content
    conflicts: int  #: spans of a stored id with other content (the later end wins, then the greater content hash)


class KeyRow(NamedTuple):
    """One join key of one source (a trace id or a record source)."""

    source: str
    kind: str
    scope: str
    value: str
    start_ns: int
    end_ns: int


class Store(Protocol):
    """One writer; any number of readers through ``query``. Every write method is one transaction."""

    path: str  #: where the store lives, for people; ":memory:" for one that vanishes

    def bytes_on_disk(self) -> int | None:
        """What the store takes on disk; None if it is not on disk."""

    def add(self, batch: Batch, keys: Sequence[KeyRow] = ()) -> Added:
        """Store raw spans, records, logs, points, rejections and join keys; drop duplicates, counted."""

    def sources_sharing(self, keys: Sequence[KeyRow], window_ns: int) -> set[str]:
        """Sources that hold an equal (kind, scope, value) within ``window_ns`` of the given rows' times."""

    def runs(self, sources: Collection[str]) -> dict[str, str]:
        """Source -> run label given at ingest (key rows of kind ``run``); sources without one are absent."""

    def load(self, sources: Collection[str]) -> tuple[list[Span], list[Record]]:
        """Raw spans and records of the given sources, as they came."""

    def replace_requests(self, sources: Collection[str], requests: Sequence[Request]) -> None:
        """Drop every request made of any of ``sources`` and insert ``requests`` with all their child rows."""

    def sources(self, since_ns: int | None = None) -> list[str]:
        """All sources stored, oldest first (for rederive)."""

    def clear_derived(self) -> None:
        """Empty every derived table; raw tables stay."""

    def query(self, name: str, parameters: Mapping[str, Any]) -> pa.Table:
        """Run the named query of pdtrace/queries with named parameters."""

    def close(self) -> None:
        """Checkpoint and close."""
