"""Brings a DuckDB file to the newest schema: numbered .sql files, each applied once, in one transaction.

Owns schema_version. Does not own the schema itself (schemas/sql/duckdb).
"""

from __future__ import annotations

import time
from pathlib import Path

import duckdb

from pdtrace.schemas import schema_files
from pdtrace.store.contract import StoreError

FOLDER = "sql/duckdb"


def migrations() -> list[tuple[int, Path]]:
    """(version, file) in order; the version is the number the file's name starts with."""
    return [(int(path.name.split("_", 1)[0]), path) for path in schema_files(FOLDER, ".sql")]


def version_of(con: duckdb.DuckDBPyConnection) -> int:
    """Schema version of an open file; 0 = empty.

    Raises:
        StoreError: the file holds tables and no schema_version: it is somebody else's.
    """
    tables = {row[0] for row in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if "schema_version" not in tables:
        if tables:
            raise StoreError("this DuckDB file holds other tables and is not a pdtrace store; choose another file")
        return 0
    row = con.execute("SELECT coalesce(max(version), 0) FROM schema_version").fetchone()
    return int(row[0]) if row else 0


def migrate(con: duckdb.DuckDBPyConnection, *, read_only: bool) -> None:
    """Apply what is missing.

    Raises:
        StoreError: a newer pdtrace wrote the file, or it is older (or empty) and may not be changed.
    """
    version = version_of(con)
    steps = migrations()
    newest = steps[-1][0]
    if version > newest:
        raise StoreError(
            f"a newer pdtrace wrote this store (schema {version}, this one knows {newest}); upgrade pdtrace"
        )
    if version == newest:
        return
    if read_only:
        raise StoreError(
            f"this store has schema {version} and {newest} is needed; `pdtrace rederive --db FILE` brings it up to date"
        )
    for number, path in steps:
        if number > version:
            con.execute("BEGIN")
            if number == steps[0][0]:
                con.execute("CREATE TABLE schema_version (version INTEGER NOT NULL, name VARCHAR, applied_ns BIGINT)")
            con.execute(path.read_text(encoding="utf-8"))
            con.execute("INSERT INTO schema_version VALUES (?, ?, ?)", [number, path.name, time.time_ns()])
            con.execute("COMMIT")
