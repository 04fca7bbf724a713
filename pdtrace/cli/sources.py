"""Opening what a command reads or writes: a store file or a running service.

Owns the choice between the two and the sentence for a missing file. Does not ask questions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pdtrace.cli.options import DEFAULT_URL
from pdtrace.reader.contract import Reader
from pdtrace.store.contract import Store


class NoStore(RuntimeError):
    """The store file that was named does not exist."""


@contextmanager
def open_reader(db: Path | None, url: str | None) -> Iterator[Reader]:
    """The reader of ``db``, else of the service at ``url`` (default: the local one)."""
    if db is None:
        from pdtrace.reader.http import HttpReader

        with HttpReader(url or DEFAULT_URL) as reader:
            yield reader
        return
    from pdtrace.reader.local import LocalReader
    from pdtrace.store.duckdb import DuckDBStore

    must_exist(db)
    store = DuckDBStore(db, read_only=True)
    try:
        yield LocalReader(store)
    finally:
        store.close()


@contextmanager
def open_store(db: Path) -> Iterator[Store]:
    """The store in ``db`` for writing alone (nobody asks it questions meanwhile); made if it does not exist."""
    from pdtrace.store.duckdb import DuckDBStore

    store = DuckDBStore(db, threads=1)
    try:
        yield store
    finally:
        store.close()


def must_exist(db: Path) -> None:
    """Refuse a path without a store, instead of answering from a new and empty one.

    Raises:
        NoStore: Nothing is there.
    """
    if not db.is_file():
        raise NoStore(f"{db}: no such store; `pdtrace ingest PATH --db {db}` makes one")
