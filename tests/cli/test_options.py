"""Times, numbers for people, and what counts as wrong usage."""

from __future__ import annotations

import pytest

from pdtrace.cli.options import parse_time
from pdtrace.cli.output import duration, moment
from tests.cli.command import pdtrace

NOW = 1_780_000_000_000_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000000001", 1_700_000_000_000_000_001),
        ("0", 0),
        ("1970-01-01T00:00:01Z", 1_000_000_000),
        ("2026-01-31T12:00:00+02:00", 1_769_853_600_000_000_000),
        ("2026-01-31T10:00:00.123456789Z", 1_769_853_600_123_456_789),
        ("2026-01-31 10:00:00.5Z", 1_769_853_600_500_000_000),
        ("15m", NOW - 900_000_000_000),
        ("1.5h", NOW - 5_400_000_000_000),
        ("250ms", NOW - 250_000_000),
        ("2d", NOW - 172_800_000_000_000),
    ],
)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [("2026-01-31T12:00:00", "names no time zone"), ("yesterday", "15m"), ("-5m", "no time"), ("15 m", "no time")],
)
def test_bad_times_say_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "-"),
        (0, "0 ms"),
        (1_234, "0.00123 ms"),
        (95_000_000, "95 ms"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (9_999_000_000, "9999 ms"),
        (10_000_000_000, "10 s"),
        (72_345_000_000, "72.3 s"),
        (-5_000_000, "-5 ms"),
    ],
)
def test_durations_for_people(ns: int | None, shown: str) -> None:
    assert duration(ns) == shown


def test_moments_are_utc_and_say_so() -> None:
    assert moment(1_769_853_600_123_456_789) == "2026-01-31 10:00:00.123Z"
    assert moment(None) == "-"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["requests", "--db", "a", "--url", "http://b"], "--db and --url exclude each other"),
        (["requests", "--since", "2026-01-31T12:00:00"], "names no time zone"),
        (["requests", "--outcome", "great"], "one of ok,"),
        (["requests", "--mode", "fast"], "one of aggregated,"),
        (["requests", "--limit", "0"], "0"),
        (["requests", "--frobnicate"], "--frobnicate"),
        (["ingest", "--db", "x"], "PATH"),
        (["ingest", "."], "--db"),
        (["rederive"], "--db"),
        (["export", "--format", "perfetto", "--out", "x"], "--id"),
        (["export", "--format", "parquet", "--out", "x", "--id", "1"], "--id"),
        (["export", "--format", "gif", "--out", "x"], "gif"),
        (["trace"], "ID"),
        (["serve", "--api-port", "99999"], "99999"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_wrong_usage_is_exit_2_with_a_reason_and_an_empty_stdout(arguments: list[str], says: str) -> None:
    done = pdtrace(*arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


def test_help_lists_every_command_and_loads_none_of_the_heavy_parts() -> None:
    done = pdtrace("--help")
    assert done.returncode == 0
    for name in ("up", "serve", "ingest", "requests", "trace", "ttft", "ledger", "charge", "export", "doctor"):
        assert f"\n  {name} " in done.stdout
    loaded = pdtrace("--help", PYTHONPROFILEIMPORTTIME="1").stderr
    for heavy in ("duckdb", "pyarrow", "polars", "grpc", "streamlit", "httpx", "numpy"):
        assert f"| {heavy}\n" not in loaded
        assert f" {heavy}\n" not in loaded
