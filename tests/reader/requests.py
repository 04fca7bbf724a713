"""Builders of Request objects for tests: say what matters, get the rest.

Owns fixtures only. Sections are given as lengths in ms, in order; they tile the window by construction.
"""

from __future__ import annotations

from typing import Any

from pdtrace.model import Activity, Request, Section

MS = 1_000_000
S = 1_000_000_000
T0 = 1_790_000_000 * S  #: a Unix time, 20 s into a minute


def make_request(
    uid: str,
    sections_ms: list[tuple[str, int]] | None = None,
    *,
    at_s: float = 0.0,
    end_after_ms: int | None = 2000,
    to_end_ms: list[tuple[str, int]] | None = None,
    **facts: Any,
) -> Request:
    """A request whose window starts at T0 + ``at_s``.

    Args:
        uid: also makes request_id ("req-<uid>"), trace id and sources, unless given in ``facts``.
        at_s: window start, in seconds after T0.
        sections_ms: (stage, length) tiling the window; None = no first token.
        end_after_ms: end of the request after t0; None = open.
        to_end_ms: (stage, length) of a request without a first token.
        facts: any other field of Request.
    """
    t0_ns = T0 + round(at_s * S)
    sections = _tile(t0_ns, sections_ms or [])
    to_end = _tile(t0_ns, to_end_ms or [])
    ttft_ns = None if sections_ms is None else sum(ms for _, ms in sections_ms) * MS
    end_ns = None if end_after_ms is None else t0_ns + end_after_ms * MS
    last_ns = max(t for t in (t0_ns, end_ns, *(s.end_ns for s in sections + to_end)) if t is not None)
    trace_id = trace_id_of(uid)
    fields: dict[str, Any] = {
        "request_id": f"req-{uid}",
        "trace_ids": [trace_id],
        "sources": [trace_id],
        "dialects": ["generic"],
        "model": "llama",
        "outcome": "ok" if ttft_ns is not None else "unknown",
        "mode": "sequential",
        "t1_ns": None if ttft_ns is None else t0_ns + ttft_ns,
        "end_ns": end_ns,
        "last_ns": last_ns,
        "clock": "host:a",
        "ttft_basis": None if ttft_ns is None else "frontend",
        "prefill_worker": "p0",
        "decode_worker": "d0",
        "stitched_by": "parent",
        "activities": [
            Activity(s.stage, s.start_ns, s.end_ns, worker="p0", clock="host:a", span_id="00000000000000aa")
            for s in sections
        ],
        "span_count": 3,
    }
    fields.update(facts)
    return Request(uid=uid, t0_ns=t0_ns, ttft_ns=ttft_ns, sections=sections, sections_to_end=to_end, **fields)


def trace_id_of(uid: str) -> str:
    """The trace id that ``make_request`` gives to ``uid``: 32 hex digits."""
    return uid.encode().hex().rjust(32, "0")[-32:]


def _tile(start_ns: int, lengths_ms: list[tuple[str, int]]) -> list[Section]:
    sections = []
    for stage, ms in lengths_ms:
        sections.append(Section(stage, start_ns, start_ns + ms * MS))
        start_ns += ms * MS
    return sections
