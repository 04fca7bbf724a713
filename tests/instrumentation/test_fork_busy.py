"""Many forks while the drainer is in the middle of its work: no lock is left behind, nothing is told twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.instrumentation.reading import spans_of

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")

SETUP = """
import os, signal, sys, time
from pdtrace.instrumentation import FileExporter, HttpExporter, Recorder, Resource, stages as s
def one(request_id, record=None):
    record = record or recorder.begin(request_id, edge=True)
    record.next(s.PREFILL)
    record.finish("ok")
def wait_for(children):
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


def run(program: str, *arguments: str, limit_s: float = 40) -> subprocess.CompletedProcess[str]:
    """Run a program that uses the recorder; it must end by itself and without a word."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SETUP + program, *arguments],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done


def told(path: Path) -> Counter[str]:
    """Request id -> request spans in a length-delimited file."""
    raw, at = path.read_bytes(), 0
    found: Counter[str] = Counter()
    span_ids: list[str] = []
    while at < len(raw):
        size = shift = 0
        while True:
            byte = raw[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        for span in spans_of(raw[at : at + size]):
            span_ids.append(span.span_id)
            if span.name == "pdtrace.request":
                found[span.attributes["pdtrace.request.id"]] += 1
        at += size
    assert len(span_ids) == len(set(span_ids)), (
        "one id twice: an export repeated, or a child that draws its parent's ids"
    )
    return found


def test_a_fork_while_the_drainer_is_busy_leaves_no_lock_behind(tmp_path: Path) -> None:
    path = tmp_path / "run.traces.bin"
    run(
        """
recorder = Recorder(Resource("engine"), FileExporter(sys.argv[1]), drain_every_s=0.0001)
children = []
for number in range(30):
    for repeat in range(20):
        one(f"parent {number} {repeat}")
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        one(f"child {number}")
        os._exit(0 if recorder.flush(15) else 1)
    children.append(child)
wait_for(children)
""",
        str(path),
        limit_s=90,
    )
    found = told(path)
    assert {name for name in found if name.startswith("child")} == {f"child {number}" for number in range(30)}
    assert set(found.values()) == {1}
    assert len(found) == 30 + 30 * 20
