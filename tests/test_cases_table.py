"""docs/cases.md: every known case is in the table, with tests that exist or the name of the work that will bring them."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CASES = ROOT.parent / "shared" / "cases" / "cases.jsonl"
LATER = ("router audit", "goodput", "counters and explanation")
ROW = re.compile(r"^\| ([\w-]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str]]:
    text = (ROOT / "docs" / "cases.md").read_text()
    return [row for row in ROW.findall(text) if row[0] not in ("case", "---")]


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_case_is_in_the_table_once() -> None:
    if not CASES.exists():
        pytest.skip("the case file (shared/cases/cases.jsonl) is not beside this checkout")
    known = [json.loads(line)["id"] for line in CASES.read_text().splitlines()]
    assert [row[0] for row in rows()] == known


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_tests_that_exist_or_later_work(row: tuple[str, str, str, str]) -> None:
    case, _, tests, later = row
    named = re.findall(r"`([^`]+)`", tests)
    for name in named:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), f"{case}: there is no {path}"
        assert function in functions_of(ROOT / path), f"{case}: {path} has no {function}"
    if later != "-":
        assert later.endswith(LATER), f"{case}: {later!r} does not end in one of {LATER}"
    assert named or later != "-", f"{case} has neither a test nor later work"
