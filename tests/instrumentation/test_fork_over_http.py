"""Forks and ends of processes whose receiver speaks HTTP: sockets are not shared, and none waits for a silent one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.cli.command import environment
from tests.instrumentation.receivers import Then, http_receiver, refused_port

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

FORKING = """
import json, os, sys, threading
from pdtrace.instrumentation import HttpExporter, Recorder, Resource, stages
import random
random.seed(1)

recorder = Recorder(Resource(""), HttpExporter(sys.argv[1]), drain_every_s=0.05)
def request(name):
    record = recorder.begin(name, edge=True)
    record.next(stages.PREFILL)
    record.finish("ok")

request("sent before")
assert recorder.flush()
for number in range(50):
    request(f"waiting {number}")
running = recorder.begin("running", edge=True)
own, others = os.pipe()
child = os.fork()
if child == 0:
    random.seed(1)
    request("of the child")
    running.next(stages.DECODE)
    running.finish("ok")      # the parent's to tell
    while recorder.stats().exported < 1:   # the child's own drainer does it
        threading.Event().wait(0.01)
    stats = recorder.stats()
    names = [thread.name for thread in threading.enumerate()]
    os.write(others, json.dumps([stats.begun, stats.submitted, stats.exported, stats.waiting, names]).encode())
    os._exit(0)
os.waitpid(child, 0)
running.finish("ok")
request("of the parent")
print(os.read(own, 1000).decode())
"""


def run(script: str, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=environment(**extra),
        timeout=60,
        check=False,
    )


def check(spans: list[tuple[str, str, str]], child: list[Any]) -> None:
    """(request, trace, span) of all request spans that arrived, and what the child said of itself."""
    names = [name for name, _, _ in spans]
    wanted = ["sent before", "of the child", "running", "of the parent", *(f"waiting {n}" for n in range(50))]
    assert sorted(names) == sorted(wanted)
    assert len({trace for _, trace, _ in spans}) == len({span for _, _, span in spans}) == len(spans)
    begun, submitted, exported, waiting, threads = child
    assert (begun, submitted, exported, waiting) == (1, 1, 1, 0)
    assert threads.count("pdtrace-drain") == 1


def test_a_fork_over_http() -> None:
    with http_receiver() as receiver:
        done = run(FORKING, receiver.url)
        assert done.returncode == 0, done.stderr
        spans = [span for span in receiver.spans() if span.name == "pdtrace.request"]
        check(
            [(span.attributes["pdtrace.request.id"], span.trace_id, span.span_id) for span in spans],
            json.loads(done.stdout),
        )
        assert receiver.connections == 2  # a child on its parent's socket would tear both their requests


CHILDREN = """
import os, sys
from pdtrace.instrumentation import HttpExporter, Recorder, Resource
recorder = Recorder(Resource(), HttpExporter(sys.argv[1]), background=False)
for child in range(4):
    pid = os.fork()
    if pid == 0:
        for number in range(50):
            recorder.begin(f"{child}-{number}", edge=True).finish()
        os._exit(0 if recorder.flush() else 1)
    assert os.waitpid(pid, 0)[1] == 0
assert recorder.stats().begun == 0
"""


def test_children_draw_ids_of_their_own() -> None:
    with http_receiver() as receiver:
        done = run(CHILDREN, receiver.url)
        assert done.returncode == 0, done.stderr
        assert len({span.trace_id for span in receiver.spans()}) == 200
        assert len({span.span_id for span in receiver.spans()}) == 200


WORKERS = """
import multiprocessing, sys
from pdtrace.instrumentation import HttpExporter, Recorder, Resource

def work(number):
    recorder.begin(f"worker {number}", edge=True).finish()

recorder = Recorder(Resource(), HttpExporter(sys.argv[1]), drain_every_s=60)
workers = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
    assert worker.exitcode == 0
"""


def test_a_worker_of_multiprocessing_sends_what_it_finished_before_it_ends() -> None:
    """Such a process ends without the interpreter's usual exit handlers, and engines fork theirs so."""
    with http_receiver() as receiver:
        done = run(WORKERS, receiver.url)
        assert done.returncode == 0, done.stderr
        names = sorted(span.attributes["pdtrace.request.id"] for span in receiver.spans())
        assert names == ["worker 0", "worker 1", "worker 2"]


ENDING = """
import sys, time
from pdtrace.instrumentation import HttpExporter, Recorder, Resource
recorder = Recorder(Resource(), HttpExporter(sys.argv[1]))
for number in range(10):
    recorder.begin(str(number), edge=True).finish("ok")
if len(sys.argv) > 2:
    print(recorder.flush(0.2), recorder.stats().waiting, flush=True)
"""


def test_what_is_finished_is_sent_when_the_process_ends() -> None:
    with http_receiver() as receiver:
        done = run(ENDING, receiver.url)
        assert done.returncode == 0, done.stderr
        assert len(receiver.spans()) == 10
        assert [path for path, _, _ in receiver.seen] == ["/v1/traces", "/v1/metrics"]


def test_a_process_ends_though_nobody_listens() -> None:
    done = run(ENDING, f"http://127.0.0.1:{refused_port()}", "flush")
    assert done.returncode == 0
    assert done.stdout.split() == ["False", "10"]
    assert "were dropped" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("trickle", [True, False])
def test_a_process_ends_though_its_receiver_hangs(trickle: bool) -> None:
    """The receiver is silent for a minute, or says a byte now and then, which no time limit of a socket notices."""
    then = Then(b"H" * 300, pause_s=0.2) if trickle else Then(hang_s=60.0)
    with http_receiver(*[then] * 5) as receiver:
        began_s = time.monotonic()
        done = run(ENDING, receiver.url, "flush")
        assert time.monotonic() - began_s < 50  # the receiver is still silent: nobody waited for it
        assert not receiver.released.is_set()
        assert done.returncode == 0
        assert done.stdout.split() == ["False", "10"]
        assert "Traceback" not in done.stderr
