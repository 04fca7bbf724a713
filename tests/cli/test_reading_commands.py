"""The reading commands on a small store, from a file and from a service: exact keys, stdout, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pdtrace.outcomes import OUTCOMES
from pdtrace.store.duckdb import DuckDBStore
from tests.cli.command import environment, pdtrace
from tests.reader.requests import MS, T0, make_request, trace_id_of

KEYS = [
    "request_id", "trace_ids", "model", "outcome", "mode", "window", "ttft_ns", "ttft_basis", "ttft_other",
    "prefill_worker", "decode_worker", "input_tokens", "output_tokens", "cached_tokens", "attempts", "stitched_by",
    "sections", "hidden", "saving", "warnings",
]  # fmt: skip


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_requests_json_has_the_contracts_keys_in_order(source: list[str]) -> None:
    one, two, three = lines(pdtrace("requests", "--json", *source))
    assert list(one)[: len(KEYS)] == KEYS
    assert one["request_id"] == "req-one"
    assert one["window"] == [T0, T0 + 120 * MS]
    assert one["ttft_ns"] == 120 * MS == sum(one["sections"].values())
    assert one["ttft_other"] == {"router": 54 * MS}
    assert one["hidden"] == {"handoff": 40 * MS}
    assert one["saving"] == {"prefill": 55 * MS, "prefill_opaque": None}
    assert one["warnings"] == ["no_edge_span"]
    assert one["cached_tokens"] is None
    assert "sections_to_end" not in one
    assert two["window"] == [T0 + 1000 * MS, None]
    assert (two["ttft_ns"], two["sections"]) == (None, {})
    assert two["sections_to_end"] == {"prefill_queue": 1500 * MS}
    assert three["outcome"] == "in_flight"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--since", str(T0 + 1)], ["req-two", "req-three"]),
        (["--until", str(T0 + 1)], ["req-one"]),
        (["--outcome", "cancelled"], ["req-two"]),
        (["--model", "qwen"], ["req-three"]),
        (["--prefill-worker", "p/1 ü"], ["req-two"]),
        (["--decode-worker", "nobody"], []),
        (["--run", "nothing"], []),
        (["--mode", "sequential", "--limit", "2"], ["req-one", "req-two"]),
        (["--order-by", "ttft", "--descending", "--limit", "1"], ["req-one"]),
        (["--search", "req-th"], ["req-three"]),
    ],
)
def test_filters(source: list[str], options: list[str], expected: list[str]) -> None:
    assert [row["request_id"] for row in lines(pdtrace("requests", "--json", *source, *options))] == expected


def test_requests_for_people_have_units(source: list[str]) -> None:
    done = pdtrace("requests", *source)
    assert done.returncode == 0
    assert "120 ms" in done.stdout
    assert "prefill 95 ms, first_token 10 ms, handoff 10 ms, ingress 5 ms" in done.stdout.replace(
        "handoff 10 ms, first_token 10 ms", "first_token 10 ms, handoff 10 ms"
    )
    assert str(T0) not in done.stdout


@pytest.mark.parametrize("any_id", ["one", "req-one", trace_id_of("one")])
def test_trace_prints_one_request_in_full(source: list[str], any_id: str) -> None:
    (row,) = lines(pdtrace("trace", any_id, "--json", *source))
    assert list(row)[: len(KEYS)] == KEYS
    assert row["section_list"][0] == ["ingress", T0, T0 + 5 * MS]
    assert row["section_list"][-1][2] == row["window"][1]
    assert [a["stage"] for a in row["activities"]] == ["ingress", "prefill", "handoff", "first_token"]
    assert row["warning_list"] == [{"code": "no_edge_span", "text": "nobody saw the client's side"}]


def test_trace_for_people(source: list[str]) -> None:
    done = pdtrace("trace", "req-one", *source)
    assert done.returncode == 0, done.stderr
    for expected in ("TTFT 120 ms (basis: frontend)", "prefill", "79 %", "reported TTFT: router 54 ms"):
        assert expected in done.stdout
    without = pdtrace("trace", "req-two", *source)
    assert "TTFT -" in without.stdout
    assert "no first token" in without.stdout
    assert "1500 ms" in without.stdout


def test_trace_of_an_unknown_id_fails_with_one_line(source: list[str]) -> None:
    done = pdtrace("trace", "nobody", "--json", *source)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "'nobody'" in done.stderr


def test_a_trace_with_several_requests_lists_them(tmp_path: Path) -> None:
    """An agent with two calls in one trace: two edge spans are two requests."""
    db = tmp_path / "agent.duckdb"
    shared = trace_id_of("agent")
    calls = [
        make_request(uid, [("prefill", 10)], at_s=at_s, trace_ids=[shared], sources=[shared])
        for at_s, uid in enumerate(("call-1", "call-2"))
    ]
    store = DuckDBStore(db)
    store.replace_requests([shared], calls)
    store.close()
    (answer,) = lines(pdtrace("trace", shared, "--json", "--db", str(db)))
    assert list(answer) == ["requests"]
    assert [row["request_id"] for row in answer["requests"]] == ["req-call-1", "req-call-2"]
    for row in answer["requests"]:
        assert list(row)[: len(KEYS)] == KEYS
        assert "activities" not in row
    people = pdtrace("trace", shared, "--db", str(db))
    assert people.stdout.startswith("2 requests have this id")
    (one,) = lines(pdtrace("trace", "call-2", "--json", "--db", str(db)))
    assert one["uid"] == "call-2"


def test_ttft(source: list[str]) -> None:
    (group,) = lines(pdtrace("ttft", "--by", "prefill_worker,model", "--json", *source))
    assert list(group)[:2] == ["prefill_worker", "model"]
    assert (group["requests"], group["mean_ns"]) == (1, 120 * MS)
    assert sum(group["sections"].values()) == 120 * MS
    (whole,) = lines(pdtrace("ttft", "--json", *source))
    assert whole["p99_ns"] == 120 * MS
    assert "120 ms" in pdtrace("ttft", "--by", "minute", *source).stdout


@pytest.mark.parametrize("by", ["planet", "model,model", "bucket:0"])
def test_a_wrong_dimension_is_wrong_usage(source: list[str], by: str) -> None:
    done = pdtrace("ttft", "--by", by, "--json", *source)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_order_is_wrong_usage(source: list[str]) -> None:
    done = pdtrace("requests", "--order-by", "beauty", *source)
    assert (done.returncode, done.stdout) == (2, "")
    assert "t0" in done.stderr


def test_ledger(source: list[str]) -> None:
    (ledger,) = lines(pdtrace("ledger", "--json", *source))
    assert ledger["offered"] == 3 == sum(ledger[name] for name in OUTCOMES)
    assert ledger["wasted_gpu_seconds"] is None
    people = pdtrace("ledger", *source).stdout
    assert "lower bound" in people
    assert "33.3 %" in people


def test_doctor(source: list[str]) -> None:
    (report,) = lines(pdtrace("doctor", "--json", *source))
    assert report["ingest"]["rejected"] == 3
    people = pdtrace("doctor", *source)
    assert people.returncode == 0, people.stderr
    assert "rejected 3 span at grpc: trace id is all zero" in people.stdout


def test_export_perfetto(source: list[str], tmp_path: Path) -> None:
    out = tmp_path / "one.json"
    (answer,) = lines(
        pdtrace("export", "--format", "perfetto", "--id", "req-one", "--out", str(out), "--json", *source)
    )
    assert answer == {"path": str(out)}
    events = json.loads(out.read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} == {"ingress", "prefill", "handoff", "first_token"}


def test_export_parquet_with_filters(source: list[str], tmp_path: Path) -> None:
    out = tmp_path / "folder"
    done = pdtrace("export", "--format", "parquet", "--out", str(out), "--outcome", "ok", *source)
    assert done.stdout == f"{out}\n", done.stderr
    (row,) = pq.read_table(out / "requests.parquet").to_pylist()
    assert row["ttft_ns"] == 120 * MS
    assert row["section_prefill_ns"] == 95 * MS
    assert row["section_relay_ns"] is None
    assert row["saving_prefill_opaque_ns"] is None
    sections = pq.read_table(out / "sections.parquet").to_pylist()
    assert sum(s["end_ns"] - s["start_ns"] for s in sections) == 120 * MS
    assert [s["position"] for s in sections] == [0, 1, 2, 3]
    activities = pq.read_table(out / "activities.parquet").to_pylist()
    assert {a["uid"] for a in activities} == {"one"}


def test_export_that_cannot_be_written_fails_with_one_line(db: Path, tmp_path: Path) -> None:
    done = pdtrace(
        "export", "--format", "perfetto", "--id", "one", "--out", str(tmp_path / "no" / "x"), "--db", str(db)
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(tmp_path / "no" / "x") in done.stderr


def test_a_missing_store_and_a_missing_service_fail_with_one_line(tmp_path: Path) -> None:
    for option, value in (("--db", str(tmp_path / "none.duckdb")), ("--url", "http://127.0.0.1:1")):
        done = pdtrace("requests", "--json", option, value)
        assert (done.returncode, done.stdout) == (1, "")
        assert len(done.stderr.splitlines()) == 1
        assert value in done.stderr


def test_a_file_that_is_no_store_fails_with_one_line(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("hello")
    done = pdtrace("requests", "--db", str(other))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_the_environment_names_the_source_and_the_command_line_beats_it(db: Path, url: str) -> None:
    assert len(lines(pdtrace("requests", "--json", PDTRACE_URL=url))) == 3
    assert len(lines(pdtrace("requests", "--json", "--db", str(db), PDTRACE_URL="http://127.0.0.1:1"))) == 3
    assert len(lines(pdtrace("requests", "--json", "--url", url, PDTRACE_DB="/none"))) == 3


def test_a_reader_that_leaves_early_is_no_error(db: Path) -> None:
    """As `pdtrace trace ... | true`: stdout is closed before anything is written."""
    child = subprocess.Popen(
        [sys.executable, "-m", "pdtrace.cli", "trace", "one", "--json", "--db", str(db)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(60) == 0
    child.stderr.close()
