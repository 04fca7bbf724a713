"""Runs the `pdtrace` command as other programs do: a process with stdout, stderr and an exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    """The environment of this process with the checkout's packages first and no settings of the caller's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PDTRACE_")}
    paths = os.pathsep.join(str(ROOT / folder) for folder in (".", "collectors", "dashboard"))
    return clean | {"PYTHONPATH": paths} | extra


def pdtrace(
    *arguments: str, stdin: str = "", cwd: Path | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "pdtrace.cli", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment(**extra),
        timeout=120,
        check=False,
    )
