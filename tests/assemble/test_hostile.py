"""Damaged telemetry: whatever a span says, assembly answers, and no answer is negative, torn or longer than its window."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdtrace.assemble import derive
from pdtrace.importers import FileImport
from pdtrace.model import Record, Request, Span
from tests.drawing import START_NS, spans

CAPTURES = Path(__file__).parents[3] / "shared" / "captures"
DRAWN = """
    req 0 - 500
      route 1 - 3 @R0
      prefill_queue 5 - 20 @P0
      prefill 20 - 100 @P0 gpus=4
      handoff 60 - 140 @P0>D0/P0 rank=0
      handoff 61 - 141 @P0>D0/D0 rank=0
      decode_queue 140 - 180 @D0
      first_token 180 - 200 @D0
      decode 200 - 500 @D0
"""
#: What no engine sends, until one does.
VALUES: tuple[Any, ...] = (
    None, "", 0, -1, 2**63 - 1, -(2**63), 1.5, float("nan"), float("inf"), -1e300, True, b"\xff", [1, "a"], {"a": 1},
    "-5", "1e400", "nan", '{"a":', "[]", "[null]", "0x", "0xzz", "x" * 300,
)  # fmt: skip


def recordings() -> list[Any]:
    found: list[Any] = [pytest.param(None, id="drawn")]
    for path in sorted(CAPTURES.glob("*/*/traces.otlp.jsonl.gz")):
        found.append(pytest.param(path.parent, id=path.parent.name))
    return found


def load(folder: Path | None) -> tuple[list[Span], list[Record]]:
    if folder is None:
        return [span for trace in "abc" for span in spans(DRAWN, trace=trace, request_id=trace)], []
    batches = [
        batch
        for name in ("traces.otlp.jsonl.gz", "request_trace.jsonl.gz")
        if (folder / name).exists()
        for batch in FileImport(folder / name).batches()
    ]
    return [span for batch in batches for span in batch.spans], [r for batch in batches for r in batch.records]


def damaged(whole: list[Span], chance: random.Random) -> list[Span]:
    """A few traces of ``whole``, with one in three spans hurt."""
    traces = sorted({span.trace_id for span in whole})
    kept = set(chance.sample(traces, min(len(traces), 6)))
    result = []
    for original in whole:
        if original.trace_id not in kept or chance.random() < 0.05:
            continue
        span = replace(original, attributes=dict(original.attributes), events=list(original.events))
        if span.attributes and chance.random() < 0.3:
            span.attributes[chance.choice(sorted(span.attributes))] = chance.choice(VALUES)
        if span.attributes and chance.random() < 0.1:
            del span.attributes[chance.choice(sorted(span.attributes))]
        if chance.random() < 0.05:
            span.start_ns = chance.choice([1, span.start_ns + 10**12, span.start_ns - 10**9, 2**62, 2**63 - 1])
        if chance.random() < 0.05:
            span.end_ns = chance.choice([0, 1, span.start_ns - 5, 2**63 - 1, span.end_ns + 10**10])
        if chance.random() < 0.05:
            parent_id = chance.choice(["", span.span_id, "f" * 16, chance.choice(whole).span_id])
            span = replace(span, parent_id=parent_id)
        if chance.random() < 0.03:
            span.name = chance.choice(["llm_request", "http-request", "pdtrace.prefill", "POST /v1/completions", ""])
        if chance.random() < 0.03:
            span.scope = chance.choice(["", "pdtrace", "smg", "sglang server"])
        span.status = chance.choice([span.status, span.status, span.status, 2])
        result.append(span)
    chance.shuffle(result)
    return result


def check(request: Request) -> None:
    durations = [request.ttft_ns, request.wasted_ns, *request.hidden_ns.values(), *request.saving_ns.values()]
    assert all(value is None or value >= 0 for value in durations)
    assert all(end > start for _, start, end in [*request.sections, *request.sections_to_end])
    if request.ttft_ns is None:
        assert not request.sections
        return
    assert sum(request.section_totals().values()) == request.ttft_ns
    assert all(value is None or value <= request.ttft_ns for value in request.saving_ns.values())
    edges = [request.t0_ns, *(end for _, _, end in request.sections)]
    assert [start for _, start, _ in request.sections] == edges[:-1]


@pytest.mark.parametrize("folder", recordings())
def test_no_damage_makes_a_crash_or_an_impossible_number(folder: Path | None) -> None:
    whole, records = load(folder)
    chance = random.Random(f"{folder and folder.name}")
    answered = 0
    for _ in range(40):
        now_ns = chance.choice([None, START_NS + 10**15])
        some = chance.sample(records, min(len(records), 5))
        for request in derive(damaged(whole, chance), some, now_ns=now_ns):
            check(request)
            answered += 1
    assert answered >= 40
