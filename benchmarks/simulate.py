"""Requests per CPU-second of the simulated cluster: alone, with its ground truth, and told to files in every dialect.

Owns the runs. The same scenario and seed each time; the figure is the median of three runs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pdtrace.simulate.emit import DIALECTS, MODES, FileSink, make_emitter
from pdtrace.simulate.play import Player
from pdtrace.simulate.scenarios import SCENARIOS, Run, ready
from pdtrace.simulate.truth import TruthFile

_REQUESTS = 4_000
_RUNS = 3


def measured(play: Callable[[], None], requests: int = _REQUESTS) -> int:
    """Requests per CPU-second, whole."""
    rates = []
    for _ in range(_RUNS):
        started_s = time.process_time()
        play()
        rates.append(requests / (time.process_time() - started_s))
    return round(statistics.median(rates))


def alone() -> None:
    """The engine, stories thrown away."""
    for _ in ready(SCENARIOS["healthy"], seed=1, requests=_REQUESTS).simulation.run():
        pass


def with_truth() -> None:
    """The engine and ground_truth.json."""
    run = ready(SCENARIOS["healthy"], seed=1, requests=_REQUESTS)
    with tempfile.TemporaryDirectory() as folder, TruthFile(Path(folder) / "ground_truth.json", run) as truth:
        for story in run.simulation.run():
            truth.add(story)


def told(dialect: str, requests: int) -> None:
    """The engine and the telemetry of one dialect in a file."""

    def emitter(run: Run):  # type: ignore[no-untyped-def]
        return make_emitter(dialect, FileSink(Path(folder) / "traces.bin"), run.simulation.facts, 1)

    with tempfile.TemporaryDirectory() as folder:
        player = Player(emitter, lambda _run: None)
        mode = "" if "sequential" in MODES[dialect] else MODES[dialect][0]
        player.play(ready(SCENARIOS["healthy"], seed=1, requests=requests, mode=mode, on_worker_change=player.changes))


def main() -> None:
    """Print one line a figure."""
    unit = "requests per CPU-second"
    rate = measured(alone)
    print(json.dumps({"benchmark": "simulate: engine alone", "value": rate, "unit": unit, "wanted": 3_000}))
    print(json.dumps({"benchmark": "simulate: with ground truth", "value": measured(with_truth), "unit": unit}))
    for dialect in DIALECTS:
        requests = _REQUESTS // 4 if dialect == "sglang" else _REQUESTS  # SGLang tells every token
        rate = measured(lambda name=dialect, count=requests: told(name, count), requests)  # type: ignore[misc]
        print(json.dumps({"benchmark": f"simulate: told as {dialect}", "value": rate, "unit": unit}))


if __name__ == "__main__":
    main()
