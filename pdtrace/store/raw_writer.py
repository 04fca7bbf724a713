"""The statements that write raw tables, and those that look rows of the same identity up.

Owns SQL on raw tables. Runs inside the caller's transaction; does not decide which row of two stays (repeats.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import duckdb
import pyarrow as pa

from pdtrace.model import Record, Rejection, Span
from pdtrace.store import raw_rows
from pdtrace.store.columns import BAD_VALUE, table_of_rows
from pdtrace.store.contract import KeyRow
from pdtrace.store.raw_rows import Row
from pdtrace.store.repeats import Sorted

Item = TypeVar("Item")
Made = list[tuple[Row, Item]]

#: Copies of one span may disagree about its start by this much and are still recognised.
SAME_SPAN_WITHIN_NS = 600 * 10**9

_SPAN_COLUMNS = """replace(CAST(spans.trace_id AS VARCHAR), '-', '') AS trace_id, span_id, parent_id, name, kind, start_ns,
    end_ns, scope, resource_id, attributes, events, links, status, status_message, received_ns"""
_RECORD_COLUMNS = "kind, key, time_ns, trace_id, body, received_ns, 'record:' || kind || ':' || key AS source"

SPANS_OF_TRACES = f"""
    SELECT {_SPAN_COLUMNS} FROM spans
    WHERE trace_id IN (SELECT TRY_CAST(unnest($trace_ids::VARCHAR[]) AS UUID))
    ORDER BY start_ns, trace_id, span_id
"""

RECORDS_OF_SOURCES = f"""
    SELECT {_RECORD_COLUMNS} FROM records
    WHERE source_hash IN (SELECT md5_number_lower(unnest($sources::VARCHAR[])))
        AND 'record:' || kind || ':' || key IN (SELECT unnest($sources::VARCHAR[]))
    ORDER BY time_ns, kind, key
"""


def keepable(
    items: Sequence[Item], row_of: Callable[[Item], Row], schema: pa.Schema, what: str, rejections: list[Rejection]
) -> list[tuple[Row, Item]]:
    """Rows of the items that the table can hold; the others are appended to ``rejections``."""
    try:
        rows = [(row_of(item), item) for item in items]
        table_of_rows([row for row, _ in rows], schema)
        return rows
    except BAD_VALUE:
        pass
    rows = []
    for item in items:
        try:
            row = row_of(item)
            table_of_rows([row], schema)
        except BAD_VALUE as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            rejections.append(Rejection(what, "store", f"a value is out of what OTLP allows: {why}"))
        else:
            rows.append((row, item))
    return rows


def insert_resources(con: duckdb.DuckDBPyConnection, texts: dict[int, str]) -> None:
    """Add resources that are not there yet."""
    if texts:
        con.register(
            "new_resources",
            pa.table({"i": pa.array(list(texts), pa.uint64()), "t": pa.array(list(texts.values()), pa.string())}),
        )
        con.execute("INSERT INTO resources SELECT i, t FROM new_resources WHERE i NOT IN (SELECT resource_id FROM resources)")


def stored_spans(con: duckdb.DuckDBPyConnection, rows: Made[Span]) -> list[Row]:
    """Stored spans with the identity of any of ``rows``, in the order of raw_rows.SPAN."""
    _register_keys(con, [(r[0], r[1]) for r, _ in rows], pa.schema([("trace_id", pa.uuid()), ("span_id", pa.string())]))
    starts = [r[5] for r, _ in rows]
    return con.execute(
        f"""
        SELECT {_SPAN_COLUMNS} FROM spans
        WHERE start_ns BETWEEN $low AND $high AND (trace_id, span_id) IN (FROM given_keys)
        """,
        {"low": min(starts) - SAME_SPAN_WITHIN_NS, "high": max(starts) + SAME_SPAN_WITHIN_NS},
    ).fetchall()


def stored_records(con: duckdb.DuckDBPyConnection, rows: Made[Record]) -> list[Row]:
    """Stored records with the identity of any of ``rows``, in the order of raw_rows.RECORD."""
    return con.execute(RECORDS_OF_SOURCES, {"sources": [r[6] for r, _ in rows]}).fetchall()


def replace_spans(con: duckdb.DuckDBPyConnection, result: Sorted[Span]) -> None:
    """Delete the stored copies that lost and insert what stays."""
    if result.replaced:
        schema = pa.schema([("trace_id", pa.uuid()), ("span_id", pa.string())])
        _register_keys(con, [tuple(key) for key in result.replaced], schema)  # type: ignore[arg-type]
        con.execute("DELETE FROM spans WHERE (trace_id, span_id) IN (FROM given_keys)")
    if result.keep:
        con.register("new_spans", table_of_rows([row for row, _ in result.keep.values()], raw_rows.SPAN))
        con.execute("INSERT INTO spans SELECT * FROM new_spans")


def replace_records(con: duckdb.DuckDBPyConnection, result: Sorted[Record]) -> None:
    """Delete the stored copies that lost and insert what stays."""
    if result.replaced:
        schema = pa.schema([("kind", pa.string()), ("key", pa.string())])
        _register_keys(con, [tuple(key) for key in result.replaced], schema)  # type: ignore[arg-type]
        con.execute("DELETE FROM records WHERE (kind, key) IN (FROM given_keys)")
    if result.keep:
        con.register("new_records", table_of_rows([row for row, _ in result.keep.values()], raw_rows.RECORD))
        con.execute("INSERT INTO records SELECT * EXCLUDE (source), md5_number_lower(source) FROM new_records")


def insert_new(con: duckdb.DuckDBPyConnection, table: str, schema: pa.Schema, rows: Made[Item]) -> int:
    """Insert logs or points; return how many were there already.

    They have no id: the same content at the same time is the same thing sent again.
    """
    if not rows:
        return 0
    content = [name for name in schema.names if name != "received_ns"]
    received = schema.get_field_index("received_ns")
    once = {row[:received] + row[received + 1 :]: row for row, _ in reversed(rows)}
    con.register("new_rows", table_of_rows(list(once.values())[::-1], schema))
    same = " AND ".join(f"there.{name} IS NOT DISTINCT FROM new_rows.{name}" for name in content)
    inserted = con.execute(
        f"""
        INSERT INTO {table} SELECT * FROM new_rows WHERE NOT EXISTS (
            SELECT 1 FROM {table} AS there
            WHERE there.time_ns BETWEEN (SELECT min(time_ns) FROM new_rows) AND (SELECT max(time_ns) FROM new_rows)
                AND {same})
        """
    ).fetchone()
    return len(rows) - (int(inserted[0]) if inserted else 0)


def insert_keys(con: duckdb.DuckDBPyConnection, keys: Sequence[KeyRow]) -> None:
    """Add join keys that are not there yet."""
    rows = list(dict.fromkeys(keys))
    if rows:
        con.register("new_keys", table_of_rows(rows, raw_rows.SOURCE_KEY))
        starts = [k.start_ns for k in rows]
        con.execute(
            """
            INSERT INTO source_keys
            FROM new_keys ANTI JOIN (FROM source_keys WHERE start_ns BETWEEN $low AND $high) AS there
                USING (source, kind, scope, value, start_ns, end_ns)
            """,
            {"low": min(starts), "high": max(starts)},
        )


def count_repeats(con: duckdb.DuckDBPyConnection, what: str, duplicates: int, conflicts: int) -> None:
    """Add to the counters of what came again."""
    if duplicates or conflicts:
        con.execute(
            """
            MERGE INTO repeats USING (SELECT $what AS what) AS new USING (what)
            WHEN MATCHED THEN UPDATE SET duplicates = duplicates + $duplicates, conflicts = conflicts + $conflicts
            WHEN NOT MATCHED THEN INSERT VALUES ($what, $duplicates, $conflicts)
            """,
            {"what": what, "duplicates": duplicates, "conflicts": conflicts},
        )


def count_rejections(con: duckdb.DuckDBPyConnection, rejections: Sequence[Rejection]) -> None:
    """Add to the counters of what was not kept."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for r in rejections:
        counts[(r.what, r.where, r.reason)] += r.count
    if counts:
        text = pa.string()
        schema = pa.schema([("what", text), ("place", text), ("reason", text), ("n", pa.int64())])
        con.register("new_rejections", table_of_rows([(*key, n) for key, n in counts.items()], schema))
        con.execute(
            """
            MERGE INTO rejections USING new_rejections AS new USING (what, place, reason)
            WHEN MATCHED THEN UPDATE SET count = count + new.n
            WHEN NOT MATCHED THEN INSERT VALUES (new.what, new.place, new.reason, new.n)
            """
        )


def _register_keys(con: duckdb.DuckDBPyConnection, keys: Sequence[Row], schema: pa.Schema) -> None:
    con.register("given_keys", table_of_rows(list(dict.fromkeys(keys)), schema))
