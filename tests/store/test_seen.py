"""Repeats are found whatever is remembered: in the same process, after a restart, and after memory was let go."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtrace.model import Batch, Span
from pdtrace.store import seen
from pdtrace.store.duckdb import DuckDBStore

START_NS = 1_796_074_641_000_000_000


def spans(numbers: range, *, later_ns: int = 0, end_ns: int = 10) -> list[Span]:
    return [
        Span(
            f"{n:032x}", f"{n:016x}", "", "s", 1, START_NS + n + later_ns, START_NS + n + later_ns + end_ns, "", {}, {}
        )
        for n in numbers
    ]


def counts(store: DuckDBStore, batch: list[Span]) -> tuple[int, int, int]:
    added = store.add(Batch(spans=batch))
    return len(added.spans), added.duplicates, added.conflicts


def test_nothing_is_suspect_before_anything_is_stored() -> None:
    known = seen.Seen(None)
    assert known.suspects(spans(range(1, 4))) == []
    known.add(spans(range(2, 3)))
    assert known.suspects(spans(range(1, 4))) == [1]


def test_what_an_earlier_process_may_have_stored_is_suspect_near_its_time_only() -> None:
    known = seen.Seen(START_NS)
    near, far = spans(range(1, 2)), spans(range(2, 3), later_ns=seen.SAME_SPAN_WITHIN_NS)
    assert known.suspects(near + far) == [0]


def test_repeats_are_found_in_one_process_and_after_a_restart(tmp_path: Path) -> None:
    store = DuckDBStore(tmp_path / "a.duckdb")
    assert counts(store, spans(range(1, 9))) == (8, 0, 0)
    assert counts(store, spans(range(5, 13))) == (4, 4, 0)
    assert counts(store, spans(range(1, 3), end_ns=20)) == (2, 0, 2)
    store.close()
    store = DuckDBStore(tmp_path / "a.duckdb")
    assert counts(store, spans(range(1, 14), end_ns=20)) == (11, 2, 10)
    store.close()


def test_repeats_are_found_after_memory_was_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "_MOST_KNOWN", 5)
    store = DuckDBStore(":memory:")
    for _ in range(2):
        for first in (1, 4, 7):
            counts(store, spans(range(first, first + 3)))
    assert counts(store, spans(range(1, 11))) == (1, 9, 0)
    store.close()


def test_a_refused_transaction_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    from pdtrace.store import raw_writer

    store = DuckDBStore(":memory:")
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise RuntimeError("no")

        patch.setattr(raw_writer, "count_rejections", fail)
        with pytest.raises(RuntimeError):
            counts(store, spans(range(1, 4)))
    assert counts(store, spans(range(1, 4))) == (3, 0, 0)
    store.close()
