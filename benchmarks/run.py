"""`make bench`: every benchmark in a process of its own, one table at the end.

Owns the list, the time limits and the table. Reports figures beside what was wanted; it fails only if a benchmark breaks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_LIMIT_S = 900
#: Scripts that print one JSON object a result; decode.py prints lines for people, shown as they are.
_SCRIPTS = ("charge.py", "overhead.py", "simulate.py", "decode.py", "ingest.py", "freshness.py", "queries.py")


def run(script: str) -> tuple[list[dict[str, Any]], list[str], int]:
    """(results, other lines, exit status) of one benchmark."""
    done = subprocess.run(
        [sys.executable, str(_HERE / script)], capture_output=True, text=True, timeout=_LIMIT_S, check=False,
        env=os.environ | {"PYTHONPATH": str(_HERE.parent)},
    )  # fmt: skip
    results, lines = [], []
    for line in done.stdout.splitlines():
        try:
            parsed = json.loads(line)
        except json.JSONDecodeError:
            parsed = None
        if isinstance(parsed, dict) and "benchmark" in parsed:
            results.append(parsed)
        else:
            lines.append(line)
    if done.returncode:
        lines += done.stderr.splitlines()[-15:]
    return results, lines, done.returncode


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    value, wanted = result["value"], result.get("wanted")
    verdict = ""
    if wanted is not None:
        met = value <= wanted if result.get("smaller_is_better") else value >= wanted
        verdict = (
            f"{'at most' if result.get('smaller_is_better') else 'at least'} {wanted:,}: {'met' if met else 'NOT met'}"
        )
    peer = f"{result['ratio']} x {result['peer']}" if "ratio" in result else ""
    return f"{result['benchmark']:48} {value:>12,} {result['unit']:28} {verdict:28} {peer}"


def main() -> int:
    """Run everything; 1 if a benchmark broke."""
    table: list[str] = []
    broken: list[str] = []
    for script in sys.argv[1:] or _SCRIPTS:
        if not (_HERE / script).exists():
            continue
        print(f"--- {script}", flush=True)
        try:
            results, lines, status = run(script)
        except subprocess.TimeoutExpired:
            broken.append(f"{script}: no end after {_LIMIT_S} s")
            continue
        for line in lines:
            print(line)
        for result in results:
            print(json.dumps(result))
            table.append(row(result))
        if status:
            broken.append(f"{script}: exit status {status}")
    print("\n" + "\n".join(table + broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
