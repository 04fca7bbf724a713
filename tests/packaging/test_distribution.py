"""sdist to wheel to a clean environment: everything is in there, nothing overwrites others, the command starts."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel): the wheel is built from the unpacked sdist, as an installer would."""
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,) = out.glob("*.tar.gz")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a clean environment with the wheel and nothing else."""
    where = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    done = run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index",
        "--disable-pip-version-check", built[1], cwd=where,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return python


def test_the_wheel_holds_every_package_and_all_data(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[1]).namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"pdtrace", "pdtrace_collectors", "pdtrace_dashboard", "pdtrace-0.1.0.dist-info"}
    for folder, suffixes in (("pdtrace", (".py", ".sql", ".gz", ".md")), ("schemas", ("",))):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.name.endswith(suffixes) and "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT).as_posix()
                expected = inside if folder == "pdtrace" else f"pdtrace/_schemas/{inside.removeprefix('schemas/')}"
                assert expected in names, f"{inside} is missing in the wheel"
    for package in ("collectors/pdtrace_collectors", "dashboard/pdtrace_dashboard"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.relative_to((ROOT / package).parent).as_posix() in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_the_sdist_holds_what_a_developer_needs_and_no_leftovers(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in (
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "tests/packaging/test_distribution.py",
        "schemas/registry/native.toml",
        "docs/architecture.md",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith((".venv", ".git/", "demo-data", "out/", "dist/"))]
    assert not [name for name in names if name.endswith((".duckdb", ".pyc"))]


def test_a_clean_environment_imports_the_base(installed: Path, tmp_path: Path) -> None:
    done = run(
        installed, "-c", "import pdtrace, pdtrace.stages, pdtrace.model; print(pdtrace.__version__)", cwd=tmp_path
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0.1.0"), done.stderr


def test_schemas_are_found_in_the_installed_package(installed: Path, tmp_path: Path) -> None:
    code = "from pdtrace.schemas import schemas_root, schema_text; print(schemas_root().name, len(schema_text('registry/native.toml')) > 1000)"
    done = run(installed, "-c", code, cwd=tmp_path)
    assert done.stdout.split() == ["_schemas", "True"], done.stderr


def test_the_command_without_its_extra_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    done = run(installed.with_name("pdtrace"), "--help", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "pdtrace: the command line is not part of the base install; pip install 'pdtrace[all]' brings it"
    )


def test_the_command_with_its_dependencies_starts(installed: Path, tmp_path: Path) -> None:
    """The dependencies are lent by the environment of the tests, pdtrace itself comes from the wheel."""
    lent = sysconfig.get_paths()["purelib"]
    script = "import pdtrace.cli.main as m, pdtrace; print(pdtrace.__file__); m.main()"
    done = run(installed, "-c", script, "--help", cwd=tmp_path, PYTHONPATH=lent)
    assert done.returncode == 0, done.stderr
    where, _, text = done.stdout.partition("\n")
    assert Path(where).is_relative_to(installed.parents[1])
    for command in ("up", "serve", "ingest", "requests", "ttft", "doctor", "export"):
        assert f"\n  {command} " in text
