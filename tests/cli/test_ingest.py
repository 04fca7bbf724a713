"""`pdtrace ingest` and `pdtrace rederive` on real captures: the contract's object, labels, duplicates, bad lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import ROOT, pdtrace

CAPTURE = ROOT.parent / "shared" / "captures" / "dynamo-1.5.1" / "b-pd-kv-events"


@pytest.fixture
def capture() -> Path:
    if not CAPTURE.is_dir():
        pytest.skip("the captures are not beside this checkout (../shared/captures)")
    return CAPTURE


def ingest(*arguments: str, stdin: str = "") -> dict[str, Any]:
    done = pdtrace("ingest", *arguments, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    totals: dict[str, Any] = json.loads(line)
    return totals


def requests(db: Path, *options: str) -> list[dict[str, Any]]:
    done = pdtrace("requests", "--json", "--db", str(db), *options)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_capture_folder(capture: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.duckdb"
    totals = ingest(str(capture), "--db", str(db), "--run", "b")
    assert list(totals)[:8] == [
        "spans", "duplicates", "rejected", "logs", "points", "records", "requests", "skipped",
    ]  # fmt: skip
    assert totals["spans"] == 1563, "RECIPE.md: 1563 spans; the .bin holds the same ones"
    assert totals["duplicates"] >= 1563
    assert totals["rejected"] == 0
    assert totals["seconds"] > 0
    assert str(capture / "events.json") in totals["skipped"]
    rows = requests(db, "--run", "b")
    assert len(rows) == totals["requests"]
    for row in rows:
        assert row["ttft_ns"] is None or sum(row["sections"].values()) == row["ttft_ns"] > 0
    assert requests(db, "--run", "other") == []

    before = {row["uid"]: row for row in rows}
    again = ingest(str(capture / "traces.otlp.jsonl.gz"), "--db", str(db))
    assert (again["spans"], again["duplicates"]) == (0, 1563)
    assert {row["uid"]: row for row in requests(db)} == before

    done = pdtrace("rederive", "--db", str(db), "--json")
    assert json.loads(done.stdout)["requests"] == len(before)
    assert {row["uid"]: row for row in requests(db)} == before


def test_stdin(capture: Path, tmp_path: Path) -> None:
    text = gzip.decompress((capture / "traces.otlp.jsonl.gz").read_bytes()).decode()
    totals = ingest("-", "--db", str(tmp_path / "a.duckdb"), stdin=text)
    assert totals["spans"] == 1563


def test_bad_lines_are_counted_and_told_and_the_rest_loads(capture: Path, tmp_path: Path) -> None:
    lines = gzip.decompress((capture / "traces.otlp.jsonl.gz").read_bytes()).decode().splitlines()
    file = tmp_path / "some.jsonl"
    file.write_text("\n".join([lines[0], '{"resourceSpans": [{"resource": ', lines[1]]))
    whole = tmp_path / "whole.jsonl"
    whole.write_text("\n".join(lines[:2]))
    right = ingest(str(whole), "--db", str(tmp_path / "right.duckdb"))
    totals = ingest(str(file), "--db", str(tmp_path / "a.duckdb"))
    assert totals["spans"] == right["spans"] > 0
    assert totals["rejected"] == 1
    (told,) = totals["rejections"]
    assert told["where"] == f"{file}:2"
    report = json.loads(pdtrace("doctor", "--json", "--db", str(tmp_path / "a.duckdb")).stdout)
    assert report["ingest"]["rejected"] == 1


def test_for_people(capture: Path, tmp_path: Path) -> None:
    done = pdtrace("ingest", str(capture), "--db", str(tmp_path / "a.duckdb"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1563 spans, ")
    assert len(done.stdout.splitlines()) < 20


def test_what_is_not_there_loads_nothing(tmp_path: Path) -> None:
    done = pdtrace("ingest", str(tmp_path / "none"), "--db", str(tmp_path / "a.duckdb"), "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "a.duckdb").exists()


def test_ground_truth_and_foreign_files_are_skipped_with_a_reason(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "ground_truth.json").write_text("{}")
    (folder / "notes.txt").write_text("hello")
    totals = ingest(str(folder), "--db", str(tmp_path / "a.duckdb"))
    assert set(totals["skipped"]) == {str(folder / "ground_truth.json"), str(folder / "notes.txt")}
    assert (totals["spans"], totals["requests"]) == (0, 0)


def test_rederive_of_a_store_that_is_not_there_fails(tmp_path: Path) -> None:
    done = pdtrace("rederive", "--db", str(tmp_path / "none.duckdb"))
    assert done.returncode == 1
    assert not (tmp_path / "none.duckdb").exists()
