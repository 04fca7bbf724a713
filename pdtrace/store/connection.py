"""One DuckDB file: opening it with a clear word when that fails, transactions, cursors for readers, checkpoints.

Owns connections and locks. Does not know the tables.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from pdtrace.store.columns import first_line
from pdtrace.store.contract import StoreError

CHECKPOINT_EVERY_S = 60.0
MEMORY = ":memory:"

_log = logging.getLogger(__name__)


class Connection:
    """The single writer behind a lock, and a pool of cursors for reading threads.

    DuckDB checkpoints inside a commit when its write-ahead log passes a threshold (16 MB by default), which stalls
    that commit for up to a second. The threshold is raised and a timer checkpoints instead.
    Source: measured on DuckDB 2.0.1; docs/adr/0001 has the decision.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False, threads: int | None = None) -> None:
        self.path = str(path)
        self.read_only = read_only
        self._writer = _open(self.path, read_only=read_only, threads=threads)
        self._writing = threading.RLock()
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._all: list[duckdb.DuckDBPyConnection] = []
        self._pool = threading.Lock()
        self._dirty = False
        self._closed = threading.Event()
        if not read_only and self.path != MEMORY:
            threading.Thread(target=self._checkpoint_now_and_then, name="pdtrace-checkpoint", daemon=True).start()

    @contextmanager
    def transaction(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The writer inside BEGIN and COMMIT; ROLLBACK on any exception. One thread at a time."""
        with self._writing:
            if self._closed.is_set():
                raise StoreError(f"{self.path} is closed; open the store again")
            if self.read_only:
                raise StoreError(f"{self.path} is open for reading only; open it without read_only to write")
            try:
                self._writer.execute("BEGIN")
                yield self._writer
                self._writer.execute("COMMIT")
                self._dirty = True
            except BaseException as error:
                try:
                    self._writer.execute("ROLLBACK")
                except duckdb.Error:
                    _log.debug("nothing to roll back")  # BEGIN or COMMIT itself failed and ended the transaction
                if isinstance(error, duckdb.IOException | duckdb.OutOfMemoryException | duckdb.FatalException):
                    raise StoreError(f"cannot write to {self.path}: {first_line(error)}") from error
                raise

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of this thread's own; readers neither wait for the writer nor for each other."""
        with self._pool:
            if self._closed.is_set():
                raise StoreError(f"{self.path} is closed; open the store again")
            if self._idle:
                cursor = self._idle.pop()
            else:
                cursor = self._writer.cursor()
                self._all.append(cursor)
        try:
            yield cursor
        finally:
            with self._pool:
                self._idle.append(cursor)

    def close(self) -> None:
        """Checkpoint and close; a second call does nothing."""
        with self._writing:
            if self._closed.is_set():
                return
            self._closed.set()
            self.checkpoint()
            with self._pool:
                for cursor in self._all:
                    cursor.close()
            self._writer.close()

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file. Skipped, and tried at the next occasion, while readers hold it up."""
        with self._writing:
            if not self._dirty or self.read_only:
                return
            try:
                self._writer.execute("CHECKPOINT")
                self._dirty = False
            except duckdb.Error as error:
                _log.info("checkpoint of %s put off: %s", self.path, first_line(error))

    def bytes_on_disk(self) -> int | None:
        """File and write-ahead log together; None in memory."""
        if self.path == MEMORY:
            return None
        return sum(p.stat().st_size for p in (Path(self.path), Path(self.path + ".wal")) if p.exists())

    def _checkpoint_now_and_then(self) -> None:
        while not self._closed.wait(CHECKPOINT_EVERY_S):
            self.checkpoint()


def _open(path: str, *, read_only: bool, threads: int | None) -> duckdb.DuckDBPyConnection:
    if path != MEMORY:
        if read_only and not Path(path).exists():
            raise StoreError(f"{path} does not exist; `pdtrace ingest PATH --db {path}` makes it")
        folder = Path(path).resolve().parent
        if not folder.is_dir():
            raise StoreError(f"{folder} is not a folder; make it or choose another --db")
    config: dict[str, str | bool | int | float | list[str]] = {"checkpoint_threshold": "1GB"}
    if threads is not None:
        config["threads"] = threads
    try:
        con = duckdb.connect(path, read_only=read_only, config=config)
    except duckdb.IOException as error:
        text = str(error)
        if "lock" in text.lower():
            raise StoreError(
                f"{path} is held by a running pdtrace (or another program); ask that one: use --url instead of --db"
            ) from None
        raise StoreError(f"{path} cannot be opened as a pdtrace store: {first_line(error)}") from None
    except duckdb.Error as error:
        raise StoreError(f"{path} cannot be opened as a pdtrace store: {first_line(error)}") from None
    # Query text may never pick up Python variables that happen to have a table's name.
    con.execute("SET python_enable_replacements = false")
    return con
