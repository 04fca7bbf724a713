"""What an engine imports in its own process must stay light: checked in a fresh interpreter."""

from __future__ import annotations

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
    loaded = modules_after("import pdtrace.instrumentation")
    assert heavy(loaded) == set()
    ours = {m for m in loaded if m.startswith("pdtrace.") and not m.startswith("pdtrace.instrumentation")}
    assert ours <= {"pdtrace.stages"}  # no receiver, no store


@pytest.mark.parametrize("piece", ["router", "engine", "tokens", "bridge", "asgi"])
def test_pieces_of_the_instrumentation_are_light_too(piece: str) -> None:
    assert heavy(modules_after(f"import pdtrace.instrumentation.{piece}")) == set()


def test_the_instrumentation_records_and_sends_with_nothing_but_the_standard_library() -> None:
    loaded = modules_after(
        "from pdtrace.instrumentation import HttpExporter, Recorder, Resource, stages; "
        "recorder = Recorder(Resource(), HttpExporter('http://127.0.0.1:1'), background=False); "
        "record = recorder.begin('r', edge=True); record.next(stages.PREFILL); record.finish('ok'); "
        "recorder.flush(0.1)"
    )
    strangers = (
        {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"pdtrace", "opentelemetry"}
    )
    assert {name for name in strangers if not name.startswith("_")} == set()


def test_import_of_the_collectors_brings_nothing_of_pdtrace() -> None:
    loaded = modules_after("import pdtrace_collectors.netdev, pdtrace_collectors.nvml")
    assert not {m for m in loaded if m == "pdtrace" or m.startswith("pdtrace.")}
    assert heavy(loaded) == set()


def test_help_loads_no_database() -> None:
    loaded = modules_after("import pdtrace.cli.main")
    assert heavy(loaded) <= {"click"}
