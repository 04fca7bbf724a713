"""What an engine imports in its own process must stay light: checked in a fresh interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

HEAVY = {
    "duckdb",
    "polars",
    "pyarrow",
    "numpy",
    "grpc",
    "google.protobuf",
    "streamlit",
    "ptars",
    "uvicorn",
    "starlette",
    "click",
}


def modules_after(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print('\\n'.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def heavy(loaded: set[str]) -> set[str]:
    return {name for name in HEAVY if name in loaded or any(m.startswith(f"{name}.") for m in loaded)}


def test_import_pdtrace_is_light() -> None:
    loaded = modules_after("import pdtrace")
    assert "pdtrace" in loaded
    assert heavy(loaded) == set()


def test_import_of_the_instrumentation_is_light() -> None:
    if importlib.util.find_spec("pdtrace.instrumentation") is None:
        pytest.skip("pdtrace.instrumentation is not written yet")
    assert heavy(modules_after("import pdtrace.instrumentation")) == set()


def test_import_of_the_collectors_brings_nothing_of_pdtrace() -> None:
    loaded = modules_after("import pdtrace_collectors.netdev, pdtrace_collectors.nvml")
    assert not {m for m in loaded if m == "pdtrace" or m.startswith("pdtrace.")}
    assert heavy(loaded) == set()


def test_help_loads_no_database() -> None:
    loaded = modules_after("import pdtrace.cli.main")
    assert heavy(loaded) <= {"click"}
