"""Spans that are never part of a request: what a dialect calls noise, and what its own dialect put below it.

Owns that rule. Does not know why a dialect calls a span noise.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdtrace.model import Identity, Span, SpanKey


def telling_spans(spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> list[Span]:
    """``spans`` that may be part of a request, in their order.

    A probe is known by its root alone (an engine's health check runs a whole request below it), so its subtree goes
    with it as far as it is the same dialect's. Unidentified spans are left out. Iterative, linear, safe against cycles.
    """
    noise = {key for key, identity in identities.items() if identity.part == "noise"}
    if noise:
        traces = {span.trace_id for span in spans if span.key in noise}
        near = [span for span in spans if span.trace_id in traces]
        by_key = {span.key: span for span in near}
        settled: set[SpanKey] = set()
        for span in near:
            _spread(span, by_key, identities, noise, settled)
    return [span for span in spans if span.key in identities and span.key not in noise]


def _spread(
    span: Span,
    by_key: dict[SpanKey, Span],
    identities: dict[SpanKey, Identity],
    noise: set[SpanKey],
    settled: set[SpanKey],
) -> None:
    chain: list[SpanKey] = []
    at: Span | None = span
    while at is not None and at.key not in settled:
        settled.add(at.key)
        chain.append(at.key)
        at = by_key.get(at.parent_key)
    above = at.key if at is not None else None
    for key in reversed(chain):
        mine = identities.get(key)
        if above in noise and mine is not None and mine.dialect == identities[above].dialect:
            noise.add(key)
        above = key
