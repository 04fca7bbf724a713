"""Join keys: which sources hold the same request id, room, context id or run label.

Owns SQL on ``source_keys``. Does not know what makes two sources one request (pdtrace.assemble).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import duckdb

from pdtrace.store.columns import table_of_rows
from pdtrace.store.contract import KeyRow
from pdtrace.store.raw_rows import SOURCE_KEY

_HASH = "md5_number_lower(kind || chr(10) || scope || chr(10) || value)"


def insert_keys(con: duckdb.DuckDBPyConnection, keys: Sequence[KeyRow]) -> None:
    """Add keys that are not there yet."""
    rows = list(dict.fromkeys(keys))
    if not rows:
        return
    con.register("new_keys", table_of_rows(rows, SOURCE_KEY))
    starts = [k.start_ns for k in rows]
    con.execute(
        f"""
        INSERT INTO source_keys
        SELECT source, kind, scope, value, start_ns, end_ns, {_HASH}
        FROM new_keys ANTI JOIN (FROM source_keys WHERE start_ns BETWEEN $low AND $high) AS there
            USING (source, kind, scope, value, start_ns, end_ns)
        """,  # noqa: S608 - only a constant is put in
        {"low": min(starts), "high": max(starts)},
    )


def sources_sharing(con: duckdb.DuckDBPyConnection, keys: Sequence[KeyRow], window_ns: int) -> set[str]:
    """Sources that hold an equal key within ``window_ns``; a row without a time (start 0) is near to everything.

    Two passes: rows with a time meet only what is near the whole lot (cheap to skip by time), rows without meet all.
    """
    timed = [k for k in keys if k.start_ns]
    found = _sharing(con, [k for k in keys if not k.start_ns], 0, None, None)
    if timed:
        low = min(k.start_ns for k in timed) - window_ns
        high = max(k.end_ns for k in timed) + window_ns
        found |= _sharing(con, timed, window_ns, low, high)
    return found


def runs(con: duckdb.DuckDBPyConnection, sources: Collection[str]) -> dict[str, str]:
    """Source -> run label (the first in the alphabet, should there be several)."""
    rows = con.execute(
        """
        SELECT source, min(value) FROM source_keys
        WHERE kind = 'run' AND source IN (SELECT unnest($sources::VARCHAR[])) GROUP BY source
        """,
        {"sources": list(sources)},
    ).fetchall()
    return dict(rows)


def _sharing(
    con: duckdb.DuckDBPyConnection, keys: Sequence[KeyRow], window_ns: int, low: int | None, high: int | None
) -> set[str]:
    if not keys:
        return set()
    rows = con.execute(
        f"""
        WITH asked AS (
            SELECT *, {_HASH} AS key_hash FROM (SELECT unnest($keys::STRUCT(
                source VARCHAR, kind VARCHAR, scope VARCHAR, value VARCHAR, start_ns BIGINT, end_ns BIGINT)[],
                recursive := true))
        )
        SELECT DISTINCT there.source
        FROM source_keys AS there JOIN asked USING (key_hash)
        WHERE ($low::BIGINT IS NULL OR there.start_ns = 0 OR (there.start_ns <= $high AND there.end_ns >= $low))
            AND there.kind = asked.kind AND there.scope = asked.scope AND there.value = asked.value
            AND (there.start_ns = 0 OR asked.start_ns = 0
                OR (there.start_ns <= asked.end_ns + $window_ns AND there.end_ns >= asked.start_ns - $window_ns))
        """,  # noqa: S608 - only a constant is put in
        {"keys": [k._asdict() for k in keys], "window_ns": window_ns, "low": low, "high": high},
    ).fetchall()
    return {row[0] for row in rows}
