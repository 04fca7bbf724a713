"""Plays a scenario: stories to an emitter and to the truth, as fast as they come or in real time.

Owns pace, counting and ends. What happens is the engine's, how it is told is the emitter's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pdtrace.simulate.emit.contract import Emitter, Sink
from pdtrace.simulate.scenarios import Run
from pdtrace.simulate.story import WorkerChange
from pdtrace.simulate.truth import TruthFile

#: How often what was told in real time is handed on.
_FLUSH_EVERY_S: Final = 0.5


class CountedSink:
    """A sink in front of a sink: counts, and keeps the first failure instead of raising it into an emitter."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.bodies = self.body_bytes = self.records_written = self.undelivered = 0
        self.failure = ""

    def traces(self, body: bytes) -> None:
        """Hand on one ExportTraceServiceRequest."""
        self._count(body, self._sink.traces)

    def logs(self, body: bytes) -> None:
        """Hand on one ExportLogsServiceRequest."""
        self._count(body, self._sink.logs)

    def records(self, line: dict[str, Any]) -> None:
        """Hand on one record."""
        if self._tried(lambda: self._sink.records(line)):
            self.records_written += 1

    def close(self) -> None:
        """Close the sink behind."""
        self._sink.close()

    def _count(self, body: bytes, call: Callable[[bytes], None]) -> None:
        if self._tried(lambda: call(body)):
            self.bodies += 1
            self.body_bytes += len(body)

    def _tried(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except (OSError, RuntimeError) as problem:
            self.undelivered += 1
            self.failure = self.failure or str(problem)
            return False
        return True


@dataclass(slots=True)
class Player:
    """Plays one run once. Set ``changes`` as the run's ``on_worker_change`` before."""

    emitter_of: Callable[[Run], Emitter]
    truth_of: Callable[[Run], TruthFile | None]
    realtime: bool = False
    _waiting: list[WorkerChange] = field(default_factory=list)

    def changes(self, change: WorkerChange) -> None:
        """Remember a worker's change until it can be told in its place."""
        self._waiting.append(change)

    def play(self, run: Run) -> dict[str, int]:
        """Tell every story; returns the ledger. Closes the emitter and the truth, also when it is interrupted."""
        ledger: dict[str, int] = {}
        emitter, truth = self.emitter_of(run), self.truth_of(run)
        loop = run.simulation.loop
        flushed_s = time.monotonic()
        try:
            self._tell_changes(emitter, truth)
            for story in run.simulation.run():
                self._tell_changes(emitter, truth)
                if self.realtime:
                    emitter_due_s = (loop.now_ns - time.time_ns()) / 1e9
                    if emitter_due_s > 0:
                        emitter.flush()
                        flushed_s = time.monotonic()
                        time.sleep(emitter_due_s)
                emitter.emit(story)
                if truth is not None:
                    truth.add(story)
                ledger[story.outcome] = ledger.get(story.outcome, 0) + 1
                if self.realtime and time.monotonic() - flushed_s > _FLUSH_EVERY_S:
                    emitter.flush()
                    flushed_s = time.monotonic()
            self._tell_changes(emitter, truth)
        finally:
            emitter.close()
            if truth is not None:
                truth.close()
        return dict(sorted(ledger.items()))

    def _tell_changes(self, emitter: Emitter, truth: TruthFile | None) -> None:
        for change in self._waiting:
            emitter.worker_state(change.worker, change.state, change.time_ns)
            if truth is not None:
                truth.worker_changed(change)
        self._waiting.clear()


def truth_path(out: Path) -> Path:
    """Where the truth of telemetry at ``out`` lies: in the folder, or beside the file."""
    return (out.parent if out.suffix and not out.is_dir() else out) / "ground_truth.json"
