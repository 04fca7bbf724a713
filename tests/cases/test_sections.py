"""Every case of the case file that comes with activities and right sections, through the charging rule, to the nanosecond.

What the cases say beyond the rule (joins, outcomes, warnings) is tested where it belongs; docs/cases.md says where.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdtrace.charge.lines import BadLine, charge_lines

CASES = Path(__file__).parents[3] / "shared" / "cases" / "cases.jsonl"


def cases() -> list[Any]:
    if not CASES.exists():
        reason = "the case file (shared/cases/cases.jsonl) is not beside this checkout"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="no-case-file")]
    loaded = [json.loads(line) for line in CASES.read_text().splitlines()]
    return [pytest.param(case, id=case["id"]) for case in loaded if "expected_sections_ms" in case]


def to_ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


@pytest.mark.parametrize("case", cases())
def test_sections(case: dict[str, Any]) -> None:
    given = case["input"]
    assert given["unit"] == "ms"
    t0, t1 = (to_ns(value) for value in given["window"])
    activities = [
        {"stage": a["stage"], "start": to_ns(a["start"]), "end": to_ns(a["end"])} for a in given["activities"]
    ]
    (charged,) = charge_lines([json.dumps({"id": case["id"], "window": [t0, t1], "activities": activities})])
    assert not isinstance(charged, BadLine)
    totals: dict[str, int] = {}
    at = t0
    for stage, start, end in charged["sections"]:
        assert (start, end > start) == (at, True)  # tiles the window
        totals[stage] = totals.get(stage, 0) + end - start
        at = end
    assert at == t1
    assert totals == {stage: to_ns(value) for stage, value in case["expected_sections_ms"].items()}


def test_the_case_file_has_the_cases_we_know() -> None:
    if not CASES.exists():
        pytest.skip("the case file (shared/cases/cases.jsonl) is not beside this checkout")
    assert len(cases()) == 16
