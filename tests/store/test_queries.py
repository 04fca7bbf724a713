"""Every named query says what it asks, takes and gives, and does take and give that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdtrace import queries
from pdtrace.outcomes import OUTCOMES
from pdtrace.schemas import SchemaMissing, schema_files, schema_text
from pdtrace.stages import HIDEABLE, STAGES
from pdtrace.store.derived_rows import SCALARS
from pdtrace.store.duckdb import DuckDBStore

#: A value of the right type for every parameter that any query takes.
PARAMETERS = {
    "since_ns": 0, "until_ns": 2**62, "run": "r", "model": "m", "mode": "sequential", "outcome": "ok",
    "prefill_worker": "p", "decode_worker": "d", "search": "abcd", "order_by": "t0", "descending": True, "limit": 5,
    "offset": 0, "id": "a", "uid": "a", "uids": ["a"], "back_ns": 10**9, "from_ns": 0, "to_ns": 10**18, "bucket_ns": 10**9, "minute_ns": 60 * 10**9,
    **{f"by_{d}": True for d in ("prefill_worker", "decode_worker", "link", "model", "mode", "run", "outcome")},
}  # fmt: skip

NULLABLE = PARAMETERS.keys() - {"order_by", "descending", "offset", "id", "uid", "uids", "back_ns", "from_ns", "to_ns"}


@pytest.fixture(scope="module")
def store() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    yield store
    store.close()


def header_of(sql: str) -> str:
    return "\n".join(line[2:].strip() for line in sql.splitlines() if line.startswith("--"))


@pytest.mark.parametrize("name", queries.names())
def test_the_header_is_complete_and_true(name: str, store: DuckDBStore) -> None:
    query = queries.load(name)
    header = header_of(query.sql)
    assert query.sql.startswith("-- ")
    assert "?" in header.split("Parameters")[0], "the first lines ask the question"
    assert "NULL" in header or "No rows" in header or not query.parameters, "what NULL means is said"
    for parameter in query.parameters:
        assert f"${parameter}" in header, f"${parameter} is not explained"
    for parameter in re.findall(r"\$(\w+)", header):
        assert parameter in query.parameters, f"${parameter} is explained and not taken"
    if re.search(r"as (table requests|requests?\.sql)", header):
        return
    given = store.query(name, {p: PARAMETERS[p] for p in query.parameters}).column_names
    for column in given:
        generic = re.sub(r"^(p99_)?(section|hidden)_.*_ns$", r"\1\2_<stage>_ns", column)
        assert generic in header, f"column {generic} is not explained"


@pytest.mark.parametrize("name", queries.names())
def test_every_query_runs_with_every_filter_and_with_none(name: str, store: DuckDBStore) -> None:
    taken = queries.load(name).parameters
    full = store.query(name, {p: PARAMETERS[p] for p in taken})
    fixed = {"live_window": {"bucket_ns"}}.get(name, set())
    bare = store.query(
        name, {p: None if p in NULLABLE - fixed and not p.startswith("by_") else PARAMETERS[p] for p in taken}
    )
    assert full.column_names == bare.column_names


def test_the_filter_bar_means_the_same_in_every_query() -> None:
    """The conditions are spelled out in each file, so that each can be read and run alone; they must agree."""
    column = r"\(\$(\w+) IS NULL OR (\w+) (=|>=|<) \$\w+\)"
    blocks = {}
    for name in queries.names():
        found = re.findall(column, queries.load(name).sql)
        block = [f for f in found if f[0] in ("run", "model", "mode", "outcome", "prefill_worker", "decode_worker")]
        times = [f for f in found if f[0] in ("since_ns", "until_ns") and name != "sources"]
        assert all(parameter == compared and sign == "=" for parameter, compared, sign in block)
        assert times in ([], [("since_ns", "t0_ns", ">="), ("until_ns", "t0_ns", "<")]), name
        if block:
            blocks[name] = [parameter for parameter, _, _ in block]
    assert set(blocks) == {"requests", "ttft", "ledger", "facets", "live_window", "in_flight"}
    assert len({tuple(block) for block in blocks.values()}) == 1


def test_the_table_has_a_column_for_every_stage(store: DuckDBStore) -> None:
    with store._connection.reading() as con:
        columns = [row[0] for row in con.execute("DESCRIBE requests").fetchall()]
    staged = [c for c in columns if c.startswith(("section_", "hidden_", "saving_")) and c.endswith("_ns")]
    expected = [f"section_{s}_ns" for s in STAGES] + [f"hidden_{s}_ns" for s in STAGES if s in HIDEABLE]
    assert staged == expected + [f"saving_{s}_ns" for s in STAGES]
    assert set(SCALARS) <= set(columns)


def test_requests_can_be_ordered_by_every_stage() -> None:
    cases = dict(re.findall(r"WHEN '(\w+)' THEN (\w+)", queries.load("requests").sql))
    assert {s: f"section_{s}_ns" for s in STAGES}.items() <= cases.items()


def test_outcomes_are_the_ledgers() -> None:
    assert OUTCOMES == (
        "ok", "ok_fallback", "invalid", "rejected", "cancelled", "timed_out", "failed_route", "failed_prefill",
        "failed_handoff", "failed_decode", "failed", "in_flight", "unknown",
    )  # fmt: skip


def test_schema_files_are_found_or_missed_in_words() -> None:
    assert [Path(f).name for f in schema_files("sql/duckdb", ".sql")][:2] == ["0001_raw.sql", "0002_derived.sql"]
    assert "CREATE TABLE spans" in schema_text("sql/duckdb/0001_raw.sql")
    with pytest.raises(SchemaMissing, match="reinstall pdtrace"):
        schema_text("sql/none.sql")
    with pytest.raises(SchemaMissing, match="reinstall pdtrace"):
        schema_files("none", ".sql")
