"""The DuckDB store: the conformance suite, and what only a file can get wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from pdtrace.model import Batch, Request
from pdtrace.queries import QueryError
from pdtrace.store.contract import Store, StoreError
from pdtrace.store.duckdb import DuckDBStore
from pdtrace.store.migrate import migrations
from tests.reader.requests import T0, make_request
from tests.store.conformance import StoreConformance, make_span, uids


class TestInMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = DuckDBStore(":memory:")
        yield store
        store.close()


class TestOnDisk(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = DuckDBStore(tmp_path / "t.duckdb")
        yield store
        store.close()


def test_what_was_stored_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    store = DuckDBStore(path)
    store.add(Batch(spans=[make_span(1)]))
    store.replace_requests(["s"], [make_request("a", [("prefill", 10)])])
    store.close()
    store.close()  # closing twice is harmless
    for read_only in (True, False):
        again = DuckDBStore(path, read_only=read_only)
        assert uids(again) == {"a"}
        assert again.bytes_on_disk() == path.stat().st_size > 0
        again.close()
    writer = DuckDBStore(path)
    assert writer.add(Batch(spans=[make_span(1)])).duplicates == 1
    writer.close()


def test_the_write_ahead_log_alone_brings_everything_back(tmp_path: Path) -> None:
    """A process that is killed has checkpointed nothing; what it committed must be there."""
    path = tmp_path / "t.duckdb"
    script = (
        "import os, sys\n"
        "from pdtrace.store.duckdb import DuckDBStore\n"
        "from pdtrace.model import Batch\n"
        "from tests.store.conformance import make_span\n"
        "store = DuckDBStore(sys.argv[1])\n"
        "store.add(Batch(spans=[make_span(n) for n in range(1, 51)]))\n"
        "os._exit(9)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=root, timeout=60, check=False)
    assert done.returncode == 9
    store = DuckDBStore(path)
    assert len(store.load([f"{1:032x}"])[0]) == 50
    store.close()


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_another_process_holds_gives_one_clear_sentence(tmp_path: Path, read_only: bool) -> None:
    """Case duckdb-second-process."""
    path = tmp_path / "t.duckdb"
    holder = DuckDBStore(path)
    script = (
        "import sys\n"
        "from pdtrace.store.duckdb import DuckDBStore\n"
        "from pdtrace.store.contract import StoreError\n"
        "try:\n"
        "    DuckDBStore(sys.argv[1], read_only=sys.argv[2] == 'True')\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", script, str(path), str(read_only)]
    done = subprocess.run(command, cwd=root, timeout=60, capture_output=True, text=True, check=True)
    holder.close()
    assert "is held by a running pdtrace" in done.stdout
    assert "--url" in done.stdout
    assert done.stdout.count("\n") == 1


def test_files_that_cannot_be_opened_say_why(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist; `pdtrace ingest"):
        DuckDBStore(tmp_path / "none.duckdb", read_only=True)
    with pytest.raises(StoreError, match="is not a folder"):
        DuckDBStore(tmp_path / "no" / "t.duckdb")
    text = tmp_path / "text.duckdb"
    text.write_text("this is no database " * 1000)
    with pytest.raises(StoreError, match="cannot be opened as a pdtrace store"):
        DuckDBStore(text)
    foreign = tmp_path / "foreign.duckdb"
    with duckdb.connect(str(foreign)) as con:
        con.execute("CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StoreError, match="is not a pdtrace store"):
        DuckDBStore(foreign)
    with duckdb.connect(str(foreign)) as con:  # and it was left alone
        assert con.execute("SELECT table_name FROM duckdb_tables()").fetchall() == [("customers",)]


def test_schema_versions(tmp_path: Path) -> None:
    numbers = [number for number, _ in migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    path = tmp_path / "t.duckdb"
    DuckDBStore(path).close()
    with duckdb.connect(str(path)) as con:
        assert [row[0] for row in con.execute("SELECT version FROM schema_version ORDER BY 1").fetchall()] == numbers
        con.execute("INSERT INTO schema_version VALUES (999, 'future', 0)")
    with pytest.raises(StoreError, match="a newer pdtrace wrote this store"):
        DuckDBStore(path)
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM schema_version WHERE version > 1")
    with pytest.raises(StoreError, match="pdtrace rederive"):
        DuckDBStore(path, read_only=True)


def test_a_store_for_reading_refuses_to_write(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    DuckDBStore(path).close()
    store = DuckDBStore(path, read_only=True)
    with pytest.raises(StoreError, match="open for reading only"):
        store.clear_derived()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.load(["a"])


def test_a_failed_write_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from pdtrace.store import raw_writer

    store = DuckDBStore(":memory:")

    def fail(*_: object) -> None:
        raise RuntimeError("half way")

    with monkeypatch.context() as patch:
        patch.setattr(raw_writer, "count_rejections", fail)
        with pytest.raises(RuntimeError, match="half way"):
            store.add(Batch(spans=[make_span(1)]))
    assert store.load([f"{1:032x}"]) == ([], [])
    assert len(store.add(Batch(spans=[make_span(1)])).spans) == 1
    assert len(store.load([f"{1:032x}"])[0]) == 1
    store.close()


def test_readers_do_not_disturb_the_writer(tmp_path: Path) -> None:
    """Many reads from several threads while requests come in: every read sees whole transactions."""
    store = DuckDBStore(tmp_path / "t.duckdb")
    wrong: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                count = len(uids(store))
            except Exception as error:
                wrong.append(repr(error))
                return
            if count % 10:
                wrong.append(f"saw {count} requests, which no transaction left behind")

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for batch in range(20):
        requests: list[Request] = [make_request(f"{batch}-{n}", [("prefill", 5)], at_s=batch) for n in range(10)]
        store.replace_requests([s for r in requests for s in r.sources], requests)
        if batch == 10:
            store.checkpoint()
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
    assert wrong == []
    assert len(uids(store)) == 200
    store.close()


def test_queries_take_exactly_their_own_parameters() -> None:
    store = DuckDBStore(":memory:")
    with pytest.raises(QueryError, match="there is no query 'nope'"):
        store.query("nope", {})
    with pytest.raises(QueryError, match=r"missing \['uid'\], unknown \['id'\]"):
        store.query("sources_of_request", {"id": "a"})
    store.close()


def test_views_give_every_list_as_a_table() -> None:
    store = DuckDBStore(":memory:")
    store.replace_requests(["s"], [make_request("a", [("ingress", 5), ("prefill", 95)], token_times_ns=[T0, T0 + 7])])
    with store._connection.reading() as con:
        assert con.execute("SELECT uid, position, stage, to_end FROM sections ORDER BY position").fetchall() == [
            ("a", 1, "ingress", False),
            ("a", 2, "prefill", False),
        ]
        assert con.execute("SELECT stage, worker FROM activities ORDER BY position").fetchall() == [
            ("ingress", "p0"),
            ("prefill", "p0"),
        ]
        assert con.execute("SELECT position, token_ns FROM token_times ORDER BY 1").fetchall() == [(1, T0), (2, T0 + 7)]
        for view in ("ttft_claims", "evidence", "warnings", "clock_offsets"):
            assert con.execute(f"SELECT count(*) FROM {view}").fetchone() == (0,)
    store.close()
