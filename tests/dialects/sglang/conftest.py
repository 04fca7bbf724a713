"""Captured SGLang and smg telemetry as spans and readings, and hand-drawn spans of one request.

Owns the fixtures of tests/dialects/sglang. Does not charge.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdtrace.assemble.group import group
from pdtrace.dialects.contract import Tree
from pdtrace.dialects.sglang import SCOPE, SglangDialect
from pdtrace.dialects.sglang_router import SmgRouterDialect
from pdtrace.model import Reading, Span
from pdtrace.otlp.decode import decode_traces

CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "sglang"
RECEIVED_NS = 1_800_000_000_000_000_000  # after the last capture
DIALECTS = (SglangDialect(), SmgRouterDialect())
MS = 1_000_000
T0 = 1_796_074_641_000_000_000


@cache
def _spans(name: str) -> tuple[Span, ...]:
    with gzip.open(CAPTURES / name / "traces.otlp.jsonl.gz", "rb") as lines:
        batches = [decode_traces(line, encoding="json", received_ns=RECEIVED_NS, where=name) for line in lines]
    assert not any(batch.rejections for batch in batches)
    return tuple(span for batch in batches for span in batch.spans)


def _need_captures() -> None:
    if not CAPTURES.is_dir():
        pytest.skip(f"the recorded SGLang captures are not beside this checkout: {CAPTURES}")


@pytest.fixture
def capture() -> Callable[[str], list[Span]]:
    """Name of a capture -> its spans."""
    _need_captures()
    return lambda name: list(_spans(name))


@pytest.fixture
def client() -> Callable[[str], dict[str, dict[str, Any]]]:
    """Name of a capture -> what its client wrote down, by the x-request-id the router answered with."""
    _need_captures()

    def load(name: str) -> dict[str, dict[str, Any]]:
        with gzip.open(CAPTURES / name / "client_log.jsonl.gz", "rb") as lines:
            return {row["response_x_request_id"]: row for row in map(json.loads, lines)}

    return load


@pytest.fixture
def readings() -> Callable[[Sequence[Span]], list[Reading]]:
    """Spans -> what the two dialects read of each request they hold."""

    def run(spans: Sequence[Span]) -> list[Reading]:
        told = {span.key: identity for span in spans for d in DIALECTS if (identity := d.identify(span)) is not None}
        kept = [span for span in spans if span.key in told and told[span.key].part != "noise"]
        found = []
        for each in group(kept, told):
            tree, out = Tree(each.spans, told), Reading()
            for dialect in DIALECTS:
                mine = [span for span in tree.spans if told[span.key].dialect == dialect.name]
                if mine:
                    dialect.read(mine, tree, out)
            found.append(out)
        return found

    return run


class Drawing:
    """Hand-drawn spans: times in ms from T0, parents by span."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(
        self, name: str, at_ms: tuple[float, float], parent: Span | None = None, trace: int = 1, **attributes: Any
    ) -> Span:
        """One span of SGLang's scope; attribute names have __ for dots; `instance` names the process."""
        span = Span(
            trace_id=parent.trace_id if parent is not None else f"{trace:032x}",
            span_id=f"{len(self.spans) + 1:016x}",
            parent_id=parent.span_id if parent is not None else "",
            name=name,
            kind=1,
            start_ns=T0 + round(at_ms[0] * MS),
            end_ns=T0 + round(at_ms[1] * MS),
            scope=SCOPE,
            resource={"service.name": "sglang", "service.instance.id": attributes.pop("instance", "p0")},
            status=attributes.pop("status", 0),
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
        )
        self.spans.append(span)
        return span

    def visit(self, role: str, at_ms: tuple[float, float], room: str, trace: int = 1, **attributes: Any) -> Span:
        """A request root of one engine with its room; `reasons` is the finish reason's JSON text."""
        reasons = attributes.pop("reasons", '["length"]')
        named = {"rid": f"{role}-{room}", "module": "sglang::request", "bootstrap_room": room, **attributes}
        if reasons:
            named["gen_ai__response__finish_reasons"] = reasons
        return self.add(f"{role} Req {room[-8:]}", at_ms, trace=trace, instance=f"{role}-tokenizer", **named)

    def thread(self, label: str, at_ms: tuple[float, float], root: Span, tp: int | None = None, **more: Any) -> Span:
        """A thread span; P's host is hp, D's is hd."""
        host = "hd" if "Decode" in label else "hp"
        rank = {} if tp is None else {"tp_rank": tp}
        return self.add(label, at_ms, root, thread_label=label, host_id=host, instance=f"{label}-{tp}", **rank, **more)


@pytest.fixture
def drawing() -> Drawing:
    """An empty sheet."""
    return Drawing()
