"""The registry of native telemetry names against the code that writes and reads them, and against the contract."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pdtrace.schemas import schema_text
from pdtrace.stages import ACTIVITY_STAGES

ROOT = Path(__file__).parents[1]
SEMCONV = ROOT.parent / "shared" / "semconv.md"
REGISTRY: dict[str, Any] = tomllib.loads(schema_text("registry/native.toml"))
NAMES = {kind: [entry["name"] for entry in REGISTRY[kind]] for kind in ("attributes", "spans", "events", "metrics")}
TYPES = {"string", "int", "double", "bool", "string[]", "int[]", "double[]"}


def native_names(path: Path) -> set[str]:
    """Every whole string literal of the form pdtrace.word... that is not a module's name."""
    tree = ast.parse(path.read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {word for word in words if re.fullmatch(r"pdtrace\.[a-z][a-z_.]*[a-z]", word)}


def test_entries_are_whole_and_unique() -> None:
    for kind, names in NAMES.items():
        assert len(names) == len(set(names)), kind
    for entry in REGISTRY["attributes"]:
        assert entry["type"] in TYPES, entry
        assert entry["text"]
        assert entry["emitted_by"]
        assert entry["source"]
        known = {*NAMES["spans"], "stage", "span", "resource", "metric", *(f"log {n}" for n in NAMES["events"])}
        assert set(entry["on"]) <= known, entry
        if entry["name"].endswith(("_ns", "_ms")):
            assert entry["unit"] == entry["name"].rpartition("_")[2]
    assert {m["kind"] for m in REGISTRY["metrics"]} == {"gauge", "counter", "level"}


def test_every_stage_has_a_span() -> None:
    stages = {name.removeprefix("pdtrace.") for name in NAMES["spans"]} - {"request", "decode", "kv_hold"}
    assert stages == set(ACTIVITY_STAGES) - {"container"}


@pytest.mark.parametrize("folder", ["pdtrace/instrumentation", "collectors/pdtrace_collectors", "pdtrace/dialects"])
def test_names_in_the_code_are_registered(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("native*.py" if folder.endswith("dialects") else "*.py"))
    if not files:
        pytest.skip(f"{folder} is not written yet")
    registered = {name for names in NAMES.values() for name in names}
    for path in files:
        assert native_names(path) - registered == set(), path


def test_metrics_of_the_collectors_are_registered() -> None:
    pattern = re.compile(r'"((?:hw|system|pdtrace)\.[a-z_.]+)", "(gauge|counter|level)", "([^"]*)"')
    text = "".join(path.read_text() for path in (ROOT / "collectors").rglob("*.py"))
    found = {(name, kind, unit) for name, kind, unit in pattern.findall(text)}
    registered = {(m["name"], m["kind"], m["unit"]) for m in REGISTRY["metrics"]}
    assert len(found) > 5
    assert found <= registered


def test_the_registry_holds_the_whole_contract() -> None:
    if not SEMCONV.exists():
        pytest.skip("the contract's text (shared/semconv.md) is not beside this checkout")
    text = SEMCONV.read_text()
    wanted = set(re.findall(r"`(pdtrace\.[a-z_.]+[a-z])`", text))
    prefix = ""
    for cell in re.findall(r"`([a-z_.]+)`", text):  # `.mode` after `pdtrace.router.stage` means pdtrace.router.mode
        if cell.startswith("."):
            wanted.add(prefix + cell)
        elif cell.startswith("pdtrace."):
            prefix = (
                cell
                if cell == "pdtrace.cached_tokens" or cell.startswith("pdtrace.cached")
                else cell.rpartition(".")[0]
            )
            prefix = "pdtrace.cached_tokens" if prefix.startswith("pdtrace.cached") else prefix
    registered = {name for names in NAMES.values() for name in names}
    assert len(wanted) > 40
    assert {
        name for name in wanted if name not in registered and name not in ("pdtrace.gpu", "pdtrace.instrumentation")
    } == set()
