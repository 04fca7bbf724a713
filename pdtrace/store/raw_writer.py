"""The statements that write raw telemetry, and those that look rows of the same identity up.

Owns SQL on raw tables, join keys (source_keys.py) apart. Every name in a statement is a constant of ours: values are
always parameters. Runs inside the caller's transaction; does not decide which row of two stays (repeats.py).
"""

# ruff: noqa: S608 - what is put into statements are the constants of this file and names of Arrow schemas of ours

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import duckdb
import pyarrow as pa

from pdtrace.model import Record, Rejection, Span
from pdtrace.store.columns import columns_of_rows, good_and_bad, table_of_columns, table_of_rows
from pdtrace.store.raw_rows import Row
from pdtrace.store.repeats import Sorted
from pdtrace.store.seen import SAME_SPAN_WITHIN_NS

Item = TypeVar("Item")

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


@dataclass(slots=True)
class Made(Generic[Item]):
    """What of a batch the table can hold: the items, their columns, and the columns as an Arrow table."""

    items: Sequence[Item]
    columns: list[Sequence[Any]]
    table: pa.Table

    def row(self, position: int) -> Row:
        """One item as a row."""
        return tuple(column[position] for column in self.columns)

    def kept(self, positions: Sequence[int]) -> pa.Table:
        """The table's rows at ``positions``."""
        return self.table if len(positions) == len(self.items) else self.table.take(pa.array(positions, pa.int64()))


def make(
    items: Sequence[Item],
    columns_of: Callable[[Sequence[Item]], list[Sequence[Any]]],
    schema: pa.Schema,
    what: str,
    rejections: list[Rejection],
) -> Made[Item]:
    """Columns of the items that the table can hold; one rejection is appended for every other."""
    made: list[Made[Item]] = []

    def build(some: Sequence[Item]) -> pa.Table:
        columns = columns_of(some)
        made.append(Made(some, columns, table_of_columns(columns, schema)))
        return made[-1].table

    _, _, bad = good_and_bad(items, build)
    rejections += [Rejection(what, "store", f"a value is out of what OTLP allows: {why}") for _, why in bad]
    return made[-1]


def make_rows(
    items: Sequence[Item], row_of: Callable[[Item], Row], schema: pa.Schema, what: str, rejections: list[Rejection]
) -> Made[Item]:
    """``make`` for what comes in smaller numbers than spans and is written row by row."""
    return make(items, lambda some: columns_of_rows([row_of(i) for i in some], schema), schema, what, rejections)


def insert_resources(con: duckdb.DuckDBPyConnection, texts: dict[int, str]) -> None:
    """Add resources that are not there yet."""
    if texts:
        con.register(
            "new_resources",
            pa.table({"i": pa.array(list(texts), pa.uint64()), "t": pa.array(list(texts.values()), pa.string())}),
        )
        con.execute(
            "INSERT INTO resources SELECT i, t FROM new_resources WHERE i NOT IN (SELECT resource_id FROM resources)"
        )


def stored_spans(con: duckdb.DuckDBPyConnection, made: Made[Span], positions: Sequence[int]) -> list[Row]:
    """Stored spans with the identity of any of ``made`` at ``positions``, in the order of raw_rows.SPAN."""
    if not positions:
        return []
    con.register("given_keys", made.kept(positions).select(["trace_id", "span_id"]))
    starts = [made.items[i].start_ns for i in positions]
    return con.execute(
        f"""
        SELECT {_SPAN_COLUMNS}
        FROM (FROM spans WHERE start_ns BETWEEN $low AND $high) AS spans SEMI JOIN given_keys USING (trace_id, span_id)
        """,
        {"low": min(starts) - SAME_SPAN_WITHIN_NS, "high": max(starts) + SAME_SPAN_WITHIN_NS},
    ).fetchall()


def stored_records(con: duckdb.DuckDBPyConnection, made: Made[Record]) -> list[Row]:
    """Stored records with the identity of any of ``made``, in the order of raw_rows.RECORD."""
    return con.execute(RECORDS_OF_SOURCES, {"sources": list(made.columns[6])}).fetchall()


def replace_spans(con: duckdb.DuckDBPyConnection, made: Made[Span], result: Sorted) -> None:
    """Delete the stored copies that lost and insert what stays."""
    if result.replaced:
        con.register("given_keys", made.kept(result.replaced).select(["trace_id", "span_id"]))
        con.execute("DELETE FROM spans WHERE (trace_id, span_id) IN (FROM given_keys)")
    if result.keep:
        con.register("new_spans", made.kept(result.keep))
        con.execute("INSERT INTO spans SELECT * FROM new_spans")


def replace_records(con: duckdb.DuckDBPyConnection, made: Made[Record], result: Sorted) -> None:
    """Delete the stored copies that lost and insert what stays."""
    if result.replaced:
        con.register("given_keys", made.kept(result.replaced).select(["kind", "key"]))
        con.execute("DELETE FROM records WHERE (kind, key) IN (FROM given_keys)")
    if result.keep:
        con.register("new_records", made.kept(result.keep))
        con.execute("INSERT INTO records SELECT * EXCLUDE (source), md5_number_lower(source) FROM new_records")


def insert_new(con: duckdb.DuckDBPyConnection, table: str, made: Made[Item]) -> int:
    """Insert logs or points; return how many were there already.

    They have no id: the same content at the same time is the same thing sent again.
    """
    if not made.items:
        return 0
    names = made.table.schema.names
    received = names.index("received_ns")
    first: dict[Row, int] = {}
    for position, row in enumerate(zip(*made.columns, strict=True)):
        first.setdefault(row[:received] + row[received + 1 :], position)
    con.register("new_rows", made.kept(list(first.values())))
    same = " AND ".join(f"there.{n} IS NOT DISTINCT FROM new_rows.{n}" for n in names if n != "received_ns")
    inserted = con.execute(
        f"""
        INSERT INTO {table} SELECT * FROM new_rows WHERE NOT EXISTS (
            SELECT 1 FROM {table} AS there
            WHERE there.time_ns BETWEEN (SELECT min(time_ns) FROM new_rows) AND (SELECT max(time_ns) FROM new_rows)
                AND {same})
        """
    ).fetchone()
    return len(made.items) - (int(inserted[0]) if inserted else 0)


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
