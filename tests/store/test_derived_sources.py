"""What is surely in no stored request is not searched for; everything that may be is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtrace.store import derived_sources
from pdtrace.store.derived_sources import DerivedSources
from pdtrace.store.duckdb import DuckDBStore
from tests.reader.requests import make_request
from tests.store.conformance import uids


def test_only_what_was_derived_is_suspect() -> None:
    known = DerivedSources(["a"])
    known.add(["b"])
    assert known.suspects(["c", "b", "a"]) == ["b", "a"]
    known.clear()
    assert known.suspects(["a", "b"]) == []


def test_without_knowledge_every_source_is_suspect(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DerivedSources(None).suspects(["a", "b"]) == ["a", "b"]
    monkeypatch.setattr(derived_sources, "MOST_KNOWN", 2)
    full = DerivedSources([])
    full.add(["a", "b", "c"])
    assert full.suspects(["d"]) == ["d"]


@pytest.mark.parametrize("most", [1, 1000])
def test_requests_of_an_earlier_process_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("pdtrace.store.duckdb.MOST_KNOWN", most)
    for uid in ("first", "second"):
        store = DuckDBStore(tmp_path / "t.duckdb", threads=1)
        store.replace_requests(["s", "t"], [make_request(uid, [("prefill", 10)], sources=["s", "t"])])
        assert uids(store) == {uid}
        store.close()
