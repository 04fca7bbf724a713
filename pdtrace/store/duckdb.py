"""The embedded store: one DuckDB file, one writer, readers on cursors of their own.

Owns how the Store contract maps to SQL statements. The schema is in schemas/sql/duckdb, the questions in
pdtrace/queries, rows in raw_rows.py and derived_rows.py, the rule for repeats in repeats.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from pdtrace import queries
from pdtrace.model import Batch, Record, Rejection, Request, Span
from pdtrace.store import derived_rows, raw_rows, raw_writer, source_keys
from pdtrace.store.columns import good_and_bad
from pdtrace.store.connection import Connection
from pdtrace.store.contract import Added, KeyRow
from pdtrace.store.derived_sources import MOST_KNOWN, DerivedSources
from pdtrace.store.encoding import loads
from pdtrace.store.migrate import migrate
from pdtrace.store.repeats import RECORD_IDENTITY, SPAN_IDENTITY, sort_out
from pdtrace.store.seen import Seen

#: A request made of the same sources as the new ones started at most this far from their stamps. Bounds the search
#: for what is replaced; wide, because clocks of different hosts may disagree by hours.
REPLACED_WITHIN_NS = 24 * 3600 * 10**9


class DuckDBStore:
    """The Store contract on one DuckDB file (or in memory).

    Args:
        path: the file, made if it is not there; ":memory:" for a store that vanishes.
        read_only: open an existing file for reading; any number of processes may, while no one writes.
        threads: DuckDB's threads; None = one a core. Writing alone takes less CPU time with 1, large questions end
            sooner with more.

    Raises:
        StoreError: the file is held by another process, is not a store, or has another schema version.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False, threads: int | None = None) -> None:
        self._connection = Connection(path, read_only=read_only, threads=threads)
        self.path = self._connection.path
        try:
            with self._connection.reading() as con:
                migrate(con, read_only=read_only)
                known = con.execute("SELECT resource_id FROM resources").fetchall()
                latest = con.execute("SELECT max(start_ns) FROM spans").fetchall()
                derived = None if read_only else _derived_sources(con)
        except BaseException:
            self._connection.close()
            raise
        self._resource_ids = {row[0] for row in known}
        self._seen = Seen(latest[0][0])
        self._derived = DerivedSources(derived)

    def bytes_on_disk(self) -> int | None:
        """File and write-ahead log; None in memory."""
        return self._connection.bytes_on_disk()

    def add(self, batch: Batch, keys: Sequence[KeyRow] = ()) -> Added:
        """Store raw telemetry and join keys; see the contract. What no column can hold becomes a rejection."""
        rejections = list(batch.rejections)
        resources = raw_rows.Resources()
        spans = raw_writer.make(
            batch.spans, lambda some: raw_rows.span_columns(some, resources), raw_rows.SPAN, "span", rejections
        )
        records = raw_writer.make_rows(batch.records, raw_rows.record_row, raw_rows.RECORD, "record", rejections)
        logs = raw_writer.make_rows(
            batch.logs, lambda g: raw_rows.log_row(g, resources.id_of(g.resource)), raw_rows.LOG, "log", rejections
        )
        points = raw_writer.make_rows(
            batch.points,
            lambda p: raw_rows.point_row(p, resources.id_of(p.resource)),
            raw_rows.POINT,
            "point",
            rejections,
        )
        new_resources = {i: text for i, text in resources.texts.items() if i not in self._resource_ids}
        with self._connection.transaction() as con:
            raw_writer.insert_resources(con, new_resources)
            kept_spans = sort_out(
                [span.key for span in spans.items],
                spans.row,
                lambda: raw_writer.stored_spans(con, spans, self._seen.suspects(spans.items)),
                SPAN_IDENTITY,
            )
            raw_writer.replace_spans(con, spans, kept_spans)
            kept_records = sort_out(
                list(zip(*records.columns[:2], strict=True)),
                records.row,
                lambda: raw_writer.stored_records(con, records),
                RECORD_IDENTITY,
            )
            raw_writer.replace_records(con, records, kept_records)
            raw_writer.count_repeats(con, "span", kept_spans.duplicates, kept_spans.conflicts)
            raw_writer.count_repeats(con, "record", kept_records.duplicates, kept_records.conflicts)
            raw_writer.count_repeats(con, "log", raw_writer.insert_new(con, "logs", logs), 0)
            raw_writer.count_repeats(con, "point", raw_writer.insert_new(con, "points", points), 0)
            source_keys.insert_keys(con, keys)
            raw_writer.count_rejections(con, rejections)
        self._resource_ids.update(new_resources)
        self._seen.add(spans.items)
        return Added(
            spans=[spans.items[i] for i in kept_spans.keep],
            records=[records.items[i] for i in kept_records.keep],
            duplicates=kept_spans.duplicates + kept_records.duplicates,
            conflicts=kept_spans.conflicts + kept_records.conflicts,
        )

    def sources_sharing(self, keys: Sequence[KeyRow], window_ns: int) -> set[str]:
        """Sources that hold an equal key within ``window_ns`` of the given rows' times."""
        if not keys:
            return set()
        with self._connection.reading() as con:
            return source_keys.sources_sharing(con, keys, window_ns)

    def runs(self, sources: Collection[str]) -> dict[str, str]:
        """Source -> run label given at ingest; sources without one are absent."""
        if not sources:
            return {}
        with self._connection.reading() as con:
            return source_keys.runs(con, sources)

    def load(self, sources: Collection[str]) -> tuple[list[Span], list[Record]]:
        """Raw spans (by start) and records (by time) of the given sources, as they came."""
        record_sources = [s for s in sources if s.startswith("record:")]
        trace_ids = [s for s in sources if not s.startswith("record:")]
        spans: list[Span] = []
        records: list[Record] = []
        with self._connection.reading() as con:
            if trace_ids:
                rows = con.execute(raw_writer.SPANS_OF_TRACES, {"trace_ids": trace_ids}).fetchall()
                ids = list({row[8] for row in rows})
                texts = con.execute(
                    "SELECT resource_id, resource FROM resources WHERE resource_id IN (SELECT unnest($ids::UBIGINT[]))",
                    {"ids": ids},
                ).fetchall()
                resources = {row[0]: loads(row[1]) for row in texts}
                spans = [raw_rows.span_of_row(row, resources[row[8]]) for row in rows]
            if record_sources:
                found = con.execute(raw_writer.RECORDS_OF_SOURCES, {"sources": record_sources}).fetchall()
                records = [raw_rows.record_of_row(row) for row in found]
        return spans, records

    def replace_requests(self, sources: Collection[str], requests: Sequence[Request]) -> None:
        """Drop every request made of any of ``sources`` and insert ``requests`` with all that belongs to them."""
        table, good, bad = good_and_bad(requests, derived_rows.requests_table)
        replaced = self._derived.suspects(sources)
        self._derived.add(source for request in good for source in request.sources)
        with self._connection.transaction() as con:
            if replaced:
                _drop_requests(con, replaced, good)
            if good:
                con.register("new_requests", table)
                con.execute("INSERT INTO requests BY NAME SELECT * FROM new_requests")
                con.register("new_sources", derived_rows.sources_table(good))
                con.execute(
                    "INSERT INTO request_sources SELECT uid, t0_ns, md5_number_lower(source), source FROM new_sources"
                )
            raw_writer.count_rejections(
                con, [Rejection("request", r.uid, f"the derived request cannot be stored: {why}") for r, why in bad]
            )

    def sources(self, since_ns: int | None = None) -> list[str]:
        """All sources with a stamp at or after ``since_ns``, oldest first."""
        return [str(s) for s in self.query("sources", {"since_ns": since_ns})["source"].to_pylist()]

    def clear_derived(self) -> None:
        """Empty every derived table; raw tables stay."""
        with self._connection.transaction() as con:
            con.execute("DELETE FROM requests")
            con.execute("DELETE FROM request_sources")
        self._derived.clear()

    def query(self, name: str, parameters: Mapping[str, Any]) -> pa.Table:
        """Run a named query.

        Raises:
            queries.QueryError: no such query, or parameters that are not exactly its own.
        """
        query = queries.load(name)
        query.check(parameters)
        with self._connection.reading() as con:
            # A fresh relation per call: the statement runs inside to_arrow_table, while the cursor is still ours.
            result: pa.Table = con.sql(query.sql, params=dict(parameters)).to_arrow_table()
        return result

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file; a timer does it every minute."""
        self._connection.checkpoint()

    def close(self) -> None:
        """Checkpoint and close."""
        self._connection.close()


def _derived_sources(con: duckdb.DuckDBPyConnection) -> list[str] | None:
    """Sources that requests were made of; None if they are too many to keep."""
    rows = con.execute("SELECT source FROM request_sources LIMIT $most", {"most": MOST_KNOWN + 1}).fetchall()
    return None if len(rows) > MOST_KNOWN else [row[0] for row in rows]


def _drop_requests(con: duckdb.DuckDBPyConnection, sources: Collection[str], new: Sequence[Request]) -> None:
    """Delete the requests made of ``sources``: found by source inside a bounded time, deleted by (uid, time)."""
    stamps = [r.t0_ns for r in new] + [a.start_ns for r in new for a in r.activities] + [r.last_ns for r in new]
    low, high = (min(stamps) - REPLACED_WITHIN_NS, max(stamps) + REPLACED_WITHIN_NS) if stamps else (None, None)
    con.register("given_sources", pa.table({"source": pa.array(list(sources), pa.string())}))
    doomed = con.sql(
        """
        SELECT DISTINCT uid, t0_ns
        FROM request_sources
        WHERE ($low IS NULL OR t0_ns >= $low) AND ($high IS NULL OR t0_ns <= $high)
            AND (source_hash IN (SELECT md5_number_lower(source) FROM given_sources)
                AND source IN (SELECT source FROM given_sources))
        """,
        params={"low": low, "high": high},
    ).to_arrow_table()
    if not doomed.num_rows:
        return
    con.register("doomed", doomed)
    starts = doomed["t0_ns"].to_pylist()
    for table in ("requests", "request_sources"):
        con.execute(
            f"DELETE FROM {table} WHERE t0_ns BETWEEN $low AND $high AND (uid, t0_ns) IN (FROM doomed)",  # noqa: S608 - two constants
            {"low": min(starts), "high": max(starts)},
        )
