"""`pdtrace charge`: the known answers through the command, and what bad lines do.

front end 0-120, prefill 5-100, transfer 60-110, first step 110-120
-> ingress 5, prefill 95, handoff 10 (hidden 40), first_token 10
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import pdtrace

EXAMPLE = {
    "id": "example",
    "window": [0, 120],
    "activities": [
        {"stage": "container", "start": 0, "end": 120},
        {"stage": "prefill", "start": 5, "end": 100},
        {"stage": "handoff", "start": 60, "end": 110},
        {"stage": "first_token", "start": 110, "end": 120},
    ],
}


def test_the_example_of_the_definitions_from_stdin() -> None:
    done = pdtrace("charge", "-", stdin=json.dumps(EXAMPLE) + "\n\n")
    assert done.returncode == 0
    assert done.stderr == ""
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {
            "id": "example",
            "sections": [
                ["ingress", 0, 5],
                ["prefill", 5, 100],
                ["handoff", 100, 110],
                ["first_token", 110, 120],
            ],
            "hidden": {"handoff": 40},
        }
    ]


def test_a_bad_line_is_told_and_the_others_are_answered(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    bad = EXAMPLE | {"activities": [{"stage": "prefil", "start": 0, "end": 1}]}
    file.write_text("\n".join(json.dumps(line) for line in (EXAMPLE, bad, EXAMPLE | {"id": "third"})))
    done = pdtrace("charge", str(file))
    assert done.returncode == 1
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["example", "third"]
    assert len(done.stderr.splitlines()) == 1
    assert "1 of 3 lines" in done.stderr
    assert "line 2: activity 0: unknown stage 'prefil'" in done.stderr


def test_a_missing_file_is_a_usage_error() -> None:
    done = pdtrace("charge", "no-such-file.jsonl")
    assert done.returncode == 2
    assert "no-such-file.jsonl" in done.stderr
    assert done.stdout == ""


def test_every_charged_case_of_the_reference() -> None:
    cases_path = Path(__file__).parents[3] / "shared" / "cases" / "cases.jsonl"
    if not cases_path.exists():
        pytest.skip("the reference cases are not beside this checkout (../shared/cases/cases.jsonl)")
    cases = [json.loads(line) for line in cases_path.read_text().splitlines()]
    charged = {case["id"]: case for case in cases if "expected_sections_ms" in case}
    assert len(charged) >= 15

    def scaled(ms: float) -> int:
        return round(ms * 1e6)

    lines = [
        json.dumps(
            {
                "id": name,
                "window": [scaled(at) for at in case["input"]["window"]],
                "activities": [
                    {"stage": a["stage"], "start": scaled(a["start"]), "end": scaled(a["end"])}
                    for a in case["input"]["activities"]
                ],
            }
        )
        for name, case in charged.items()
    ]
    done = pdtrace("charge", "-", stdin="\n".join(lines))
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        totals: dict[str, int] = {}
        for stage, start, end in answer["sections"]:
            totals[stage] = totals.get(stage, 0) + end - start
        expected = {s: scaled(ms) for s, ms in charged[answer["id"]]["expected_sections_ms"].items() if ms}
        assert totals == expected, answer["id"]
