"""Captured vLLM telemetry as spans, and one dialect's reading of a few spans.

Owns the fixtures of tests/dialects/vllm. Does not group or charge.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdtrace.dialects.contract import Dialect, Tree
from pdtrace.dialects.vllm import VllmDialect
from pdtrace.dialects.vllm_router import VllmRouterDialect
from pdtrace.model import Identity, Reading, Span
from pdtrace.otlp.decode import decode_traces

CAPTURES = Path(__file__).parents[4] / "shared" / "captures" / "vllm-0.32"
RECEIVED_NS = 1_800_000_000_000_000_000  # after the last capture


@cache
def _spans(name: str) -> tuple[Span, ...]:
    with gzip.open(CAPTURES / name / "traces.otlp.jsonl.gz", "rb") as lines:
        batches = [decode_traces(line, encoding="json", received_ns=RECEIVED_NS, where=name) for line in lines]
    assert not any(batch.rejections for batch in batches)
    return tuple(span for batch in batches for span in batch.spans)


@pytest.fixture
def capture() -> Callable[[str], list[Span]]:
    """Name of a capture -> its spans."""
    if not CAPTURES.is_dir():
        pytest.skip(f"the recorded vLLM captures are not beside this checkout: {CAPTURES}")
    return lambda name: list(_spans(name))


@pytest.fixture
def client() -> Callable[[str], list[dict[str, Any]]]:
    """Name of a capture -> what its client wrote down, one dict a request."""
    if not CAPTURES.is_dir():
        pytest.skip(f"the recorded vLLM captures are not beside this checkout: {CAPTURES}")

    def load(name: str) -> list[dict[str, Any]]:
        with gzip.open(CAPTURES / name / "client.jsonl.gz", "rb") as lines:
            return [json.loads(line) for line in lines]

    return load


@pytest.fixture
def read() -> Callable[[Dialect, Sequence[Span]], Reading]:
    """What one dialect reads out of the spans of one request (vLLM and its router tell each span's part)."""

    def run(dialect: Dialect, spans: Sequence[Span]) -> Reading:
        known = (VllmRouterDialect(), VllmDialect())
        parts: dict[tuple[str, str], Identity] = {}
        for span in spans:
            told = [identity for identity in (d.identify(span) for d in known) if identity]
            parts[span.key] = told[0] if told else Identity("", "inner")
        tree = Tree(spans, parts)
        out = Reading()
        dialect.read([s for s in tree.spans if parts[s.key].dialect == dialect.name], tree, out)
        return out

    return run
