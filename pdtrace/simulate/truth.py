"""The ground truth of one run: every request's right answers, what the fix would have saved, the ledger.

Owns the file ground_truth.json. The rules are reference.py's, the facts are the stories'.

The file is one JSON object, written as the stories come: what is known before the run (scenario, seed, cause, onset,
hosts, workers), then ``requests``, then what is known after it (``ledger``, ``halves``, ``fix_saved_ns``). Times are true
Unix ns; durations are ns; a stamp of a host's clock is ``stamp(true) = true + offset_ns + drift_ppm * 1e-6 *
max(0, true - epoch_ns)``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import orjson

from pdtrace.simulate import reference
from pdtrace.simulate.scenarios import Run
from pdtrace.simulate.story import CONTAINER, DECODE, KV_HOLD, RouteChoice, Story, WorkerChange

#: What is told of a choice by its own name.
_CHOICE_FIELDS: Final = tuple(field.name for field in fields(RouteChoice) if field.name != "truth")
#: Doings that are no part of the way to the first token.
_AFTERWARDS: Final = (DECODE, KV_HOLD)


def answers(story: Story) -> dict[str, Any]:
    """Right answers of one request, as one JSON object.

    Keys as `pdtrace requests` has them, with ``window`` in true time and ``sections`` as a list of [stage, start, end];
    ``stages`` are the true intervals, ``choices`` what the router believed beside what was really cached.
    """
    doings = _before_the_token(story)
    first_ns, last_ns = story.first_token_ns, story.end_ns
    result: dict[str, Any] = {
        "request_id": story.request_id,
        "number": story.number,
        "model": story.model,
        "run": story.run,
        "outcome": story.outcome,
        "mode": story.mode,
        "arrival_ns": story.arrival_ns,
        "end_ns": last_ns,
        "window": None if first_ns is None else [story.arrival_ns, first_ns],
        "ttft_ns": None if first_ns is None else first_ns - story.arrival_ns,
        "frontend": story.frontend,
        "prefill_worker": story.prefill_worker,
        "decode_worker": story.decode_worker,
        "input_tokens": story.input_tokens,
        "output_tokens": story.output_tokens,
        "cached_tokens": story.cached_tokens,
        "attempts": story.attempts,
        "http_status": story.http_status,
        "error": story.error,
    }
    if first_ns is not None:
        charged = reference.sections(story.arrival_ns, first_ns, doings)
        hidden = reference.hidden(story.arrival_ns, first_ns, doings, charged)
        result["sections"] = charged
        result["exposed"] = reference.totals(charged)
        result["hidden"] = hidden
        result["saving"] = reference.savings(story.arrival_ns, first_ns, doings, charged)
    else:
        result["sections"] = []
        if last_ns is not None:
            charged = reference.sections(story.arrival_ns, last_ns, doings)
            result["sections_to_end"] = charged
            result["hidden"] = reference.hidden(story.arrival_ns, last_ns, doings, charged)
    result["stages"] = [
        {
            "stage": d.stage,
            "start": d.start_ns,
            "end": d.end_ns,
            "worker": d.worker,
            "host": d.host,
            "attempt": d.attempt,
            **({"rank": d.rank} if d.rank else {}),
            **({"chunk": d.chunk} if d.chunk else {}),
            **({"failed": d.failed} if d.failed else {}),
            **({"detail": d.detail} if d.detail else {}),
        }
        for d in story.doings
        if d.stage != CONTAINER
    ]
    result["choices"] = [_choice(choice) for choice in story.choices]
    return result


def _before_the_token(story: Story) -> list[reference.Interval]:
    return [(d.stage, d.start_ns, d.end_ns) for d in story.doings if d.stage not in _AFTERWARDS]


def _choice(choice: RouteChoice) -> dict[str, Any]:
    told = {name: getattr(choice, name) for name in _CHOICE_FIELDS}
    told["really_cached_tokens"] = choice.truth
    return told


def ttfts_without_cause(run: Run) -> dict[int, int]:
    """Number of a request -> its TTFT in ns, in a run without the cause; those without a first token are left out."""
    return {
        story.number: story.first_token_ns - story.arrival_ns
        for story in run.simulation.run()
        if story.first_token_ns is not None
    }


class TruthFile:
    """Writes ground_truth.json while the stories come.

    Args:
        path: The file; one that is there is replaced.
        run: What is played.
        facts: More of what is known before, such as the dialect.
        without_cause: As ``ttfts_without_cause`` gives it; None: nobody knows what the fix would save.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(
        self, path: Path, run: Run, facts: dict[str, Any] | None = None, without_cause: dict[int, int] | None = None
    ) -> None:
        self._run = run
        self._without_cause = without_cause
        self._ledger: Counter[str] = Counter()
        self._changes: list[WorkerChange] = []
        self._halves = (_Half(), _Half())
        self._fix_ns: list[int] = [0, 0, 0]  # TTFT with the cause, without it, requests that have both, after the onset
        self._count = 0
        self._file = path.open("wb")
        head = orjson.dumps({**(facts or {}), **header(run)})
        self._file.write(head[:-1] + b',"requests":[')

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, story: Story) -> None:
        """Write one request's right answers."""
        told = answers(story)
        after = story.arrival_ns >= self._run.onset_ns
        ttft_ns = told["ttft_ns"]
        if self._without_cause is not None:
            other_ns = self._without_cause.get(story.number)
            told["ttft_without_cause_ns"] = other_ns
            if after and ttft_ns is not None and other_ns is not None:
                self._fix_ns[0] += ttft_ns
                self._fix_ns[1] += other_ns
                self._fix_ns[2] += 1
        self._ledger[story.outcome] += 1
        if ttft_ns is not None:
            self._halves[after].add(ttft_ns, told["exposed"], told["saving"])
        self._file.write((b",\n" if self._count else b"\n") + orjson.dumps(told))
        self._count += 1

    def worker_changed(self, change: WorkerChange) -> None:
        """Remember a worker's coming or going."""
        self._changes.append(change)

    def close(self) -> None:
        """Write what is known at the end. A second call does nothing."""
        if not self._file.closed:
            self._file.write(b"\n]," + orjson.dumps(self.summary())[1:] + b"\n")
            self._file.close()

    def summary(self) -> dict[str, Any]:
        """What is known at the end: ledger, both halves, what the fix would have saved."""
        with_ns, without_ns, both = self._fix_ns
        return {
            "offered": self._count,
            "ledger": dict(sorted(self._ledger.items())),
            "halves": {"before": self._halves[0].told(), "after": self._halves[1].told()},
            "fix_saved_ns": round((with_ns - without_ns) / both) if both else None,
            "worker_changes": [asdict(change) for change in self._changes],
        }


class _Half:
    """Sums over the requests of one half."""

    def __init__(self) -> None:
        self.requests = 0
        self.ttft_ns = 0
        self.exposed: Counter[str] = Counter()
        self.saving: Counter[str] = Counter()

    def add(self, ttft_ns: int, exposed: dict[str, int], saving: dict[str, int | None]) -> None:
        self.requests += 1
        self.ttft_ns += ttft_ns
        self.exposed.update(exposed)
        self.saving.update({stage: ns for stage, ns in saving.items() if ns is not None})

    def told(self) -> dict[str, Any]:
        """Means over its requests with a first token."""
        count = max(self.requests, 1)
        return {
            "requests": self.requests,
            "mean_ttft_ns": round(self.ttft_ns / count) if self.requests else None,
            "mean_sections_ns": {stage: round(ns / count) for stage, ns in self.exposed.items()},
            "mean_saving_ns": {stage: round(ns / count) for stage, ns in self.saving.items()},
        }


def header(run: Run) -> dict[str, Any]:
    """What is known before a run."""
    scenario, facts = run.scenario, run.simulation.facts
    return {
        "scenario": scenario.name,
        "seed": run.seed,
        "run": run.simulation.run_label,
        "cause": scenario.cause or None,
        "stage": run.stage or None,
        "affected": scenario.affected or None,
        "fix": scenario.fix,
        "start_ns": run.start_ns,
        "onset_ns": run.onset_ns if scenario.cause else None,
        "requests_planned": run.requests,
        "rate_per_s": run.rate_per_s,
        "clocks": {host: asdict(clock) for host, clock in facts.hosts.items()},
        "workers": {name: asdict(worker) for name, worker in facts.workers.items()},
    }


def growth(stories: Iterable[Story], onset_ns: int) -> dict[str, float]:
    """Stage -> by how much its mean charged time grew after the onset, in ns; ``ttft`` beside them."""
    halves: Sequence[_Half] = (_Half(), _Half())
    for story in stories:
        if story.first_token_ns is not None:
            charged = reference.sections(story.arrival_ns, story.first_token_ns, _before_the_token(story))
            exposed = reference.totals(charged)
            halves[story.arrival_ns >= onset_ns].add(sum(exposed.values()), exposed, {})
    before, after = halves
    grown = {
        stage: after.exposed[stage] / max(after.requests, 1) - before.exposed[stage] / max(before.requests, 1)
        for stage in before.exposed | after.exposed
    }
    return {
        **grown,
        "ttft": after.ttft_ns / max(after.requests, 1) - before.ttft_ns / max(before.requests, 1),
    }
