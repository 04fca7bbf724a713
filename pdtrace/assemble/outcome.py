"""The outcome ledger's verdict on one request, and the time that thrown-away attempts wasted.

Owns definitions section 4: client file > edge status > a stage that failed > cancellation. Does not add up (queries do).
"""

from __future__ import annotations

from pdtrace.assemble.draft import Draft
from pdtrace.model import Activity, Failure
from pdtrace.outcomes import OUTCOMES

_INVALID = frozenset((400, 404, 413, 422))
_REJECTED = frozenset((429, 503, 529))
_TIMED_OUT = frozenset((408, 504))
_CLIENT_CLOSED = 499
_NEVER_WASTED = frozenset(("container", "decode", "kv_hold"))
#: What a recompute does again: P's whole side and the load of its result.
_REDONE = frozenset(("prefill_queue", "bootstrap", "prefill", "prefill_opaque", "handoff"))


def judge(draft: Draft) -> None:
    """Set outcome, its text, the request's end, and wasted time."""
    _find_end(draft)
    draft.outcome, draft.outcome_text = _outcome(draft)
    _add_waste(draft)


def _find_end(draft: Draft) -> None:
    """The edge's end, else D's; None while nothing that answers the user has ended."""
    edges = draft.reading.edges
    if 0 in [e.end_ns for e in edges]:
        return
    trusted = [e.end_ns for e in edges if e.end_is_trusted]
    if trusted:
        draft.end_ns = max(trusted)
        return
    answering = [e.end_ns for e in draft.reading.envelopes if e.role in ("decode", "aggregated")]
    finished = [a.end_ns for a in draft.reading.activities if a.stage == "decode" and not a.detail.get("open")]
    if answering and 0 not in answering:
        draft.end_ns = max(answering)
    elif edges:
        draft.end_ns = max(e.end_ns for e in edges)
    elif finished:
        draft.end_ns = max(finished)
    elif draft.reading.facts.get("ended_ns"):
        draft.end_ns = int(draft.reading.facts["ended_ns"])


def _outcome(draft: Draft) -> tuple[str, str]:
    facts = draft.reading.facts
    stated = facts.get("outcome")
    failure = _deciding_failure(draft)
    if stated in OUTCOMES:
        return _stated(str(stated), failure, draft)
    text = failure.text if failure else str(facts.get("error", ""))
    status = _http_status(draft)
    if facts.get("over_long_prompt") or status in _INVALID:
        return "invalid", text or f"HTTP {status}"
    if status in _REJECTED:
        return _rejected(draft, status, text)
    if status is not None and status >= 400 and status not in _TIMED_OUT | {_CLIENT_CLOSED}:
        return (f"failed_{failure.stage}" if failure and failure.stage else "failed"), text or f"HTTP {status}"
    if _answered(draft) and not facts.get("edge_failed"):
        return ("ok_fallback", _fallback_text(draft, failure)) if _fell_back(draft) else ("ok", "")
    if facts.get("timed_out_ns") is not None and facts.get("client_cancelled_ns") is None:
        return "timed_out", text or "no answer in time"  # the edge gave up, which outweighs the failures that follow
    if failure is not None:
        return (f"failed_{failure.stage}" if failure.stage else "failed"), text
    if facts.get("client_cancelled_ns") is not None or status == _CLIENT_CLOSED:
        return "cancelled", text or "the client went away"
    if status in _TIMED_OUT:
        return "timed_out", text or "no answer in time"
    if draft.end_ns is not None and (draft.reading.edges or draft.t1_ns is not None):
        return _closed_without_error(draft)
    return _still_open(draft)


def _stated(stated: str, failure: Failure | None, draft: Draft) -> tuple[str, str]:
    """What the edge says, with what only the workers know: that an answer took a fallback, and which stage failed."""
    text = str(draft.reading.facts.get("error", ""))
    if stated == "ok" and _fell_back(draft):
        return "ok_fallback", _fallback_text(draft, failure)
    if stated == "failed" and failure is not None and failure.stage:
        return f"failed_{failure.stage}", text or failure.text
    return stated, text


def _http_status(draft: Draft) -> int | None:
    """Status at the edge nearest to the user that knows one."""
    knowing = [e for e in draft.reading.edges if e.http_status is not None]
    if knowing:
        return min(knowing, key=lambda e: (e.start_ns, e.span_id)).http_status
    status = draft.reading.facts.get("http_status")
    return int(status) if status is not None else None


def _rejected(draft: Draft, status: int | None, text: str) -> tuple[str, str]:
    finished = [a for a in draft.of_role("prefill") if a.stage in ("prefill", "prefill_opaque") and not a.failed]
    if finished and draft.reading.facts.get("prefill_finished", True):
        draft.reading.warn("rejected_after_prefill", "rejected after a finished prefill: the prefill was wasted")
        return "rejected", f"{text or f'HTTP {status}'}; after a finished prefill, which was wasted"
    return "rejected", text or f"HTTP {status}"


def _deciding_failure(draft: Draft) -> Failure | None:
    """The first failure in time of the last attempt: what follows it (a client that gives up) is its consequence."""
    failures = draft.reading.failures
    if not failures:
        return None
    last = max(f.attempt for f in failures)
    named = [f for f in failures if f.attempt == last]
    return min(named, key=lambda f: (not f.stage, f.time_ns, f.stage, f.text))


def _answered(draft: Draft) -> bool:
    """A regular finish on the answering side, and a first token unless the answer came in one piece."""
    facts = draft.reading.facts
    if facts.get("answered"):
        return True
    if draft.t1_ns is None:
        return False
    visits = [e for e in draft.reading.envelopes if e.role in ("decode", "aggregated")]
    if visits:
        last = max(visits, key=lambda e: (e.attempt, e.start_ns))
        return bool(last.end_ns) and last.finished and not last.failed
    return False


def _fell_back(draft: Draft) -> bool:
    reading = draft.reading
    retried = not draft.first_attempt_only and any(
        item.role and item.attempt > 0 for item in (*draft.worker_visits(), *reading.activities)
    )
    return (
        retried
        or "recompute" in [activity.stage for activity in reading.activities]
        or any(f.stage for f in reading.failures)
        or int(reading.facts.get("attempts") or 1) > 1
    )


def _fallback_text(draft: Draft, failure: Failure | None) -> str:
    if any(a.stage == "recompute" for a in draft.reading.activities):
        return f"answered after a recompute{f': {failure.text}' if failure else ''}"
    return f"answered after a retry or migration{f': {failure.text}' if failure else ''}"


def _closed_without_error(draft: Draft) -> tuple[str, str]:
    """The edge closed and nobody reports an error: an answer if a token or a success status was seen."""
    status = _http_status(draft)
    ended_ok = status is None or status < 400
    if ended_ok and (draft.t1_ns is not None or (status is not None and draft.reading.facts.get("stream") is False)):
        return ("ok_fallback", _fallback_text(draft, None)) if _fell_back(draft) else ("ok", "")
    return "unknown", "ended without a first token and without an error"


def _still_open(draft: Draft) -> tuple[str, str]:
    explicit = any(not s.end_ns for s in draft.tree.spans)
    if draft.now_ns is None:
        ended = draft.tree.spans and not explicit
        silent = "no span from the side that answers: how it ended is not known"
        return "unknown", silent if ended else "still open at the end of the input"
    heard_ns = max((s.received_ns for s in draft.tree.spans), default=0) or draft.last_ns
    if explicit or draft.now_ns - heard_ns <= draft.limits.quiet_ns:
        return "in_flight", ""
    return "unknown", f"still open, and nothing was heard of it for {draft.limits.quiet_ns / 1e9:g} s"


def _add_waste(draft: Draft) -> None:
    """Time on attempts that were thrown away, as the union of their work and waits inside the request."""
    thrown_away = _thrown_away(draft)
    if not thrown_away:
        return
    end_ns = draft.t1_ns if draft.t1_ns is not None else draft.end_ns or draft.horizon_ns
    draft.wasted_ns = _union_ns(thrown_away, draft.t0_ns, end_ns)
    known = [a for a in thrown_away if a.gpus is not None]
    if known:
        by_worker = {a.worker: a.gpus or 0 for a in known}
        draft.wasted_gpu_seconds = sum(
            gpus * _union_ns([a for a in known if a.worker == worker], draft.t0_ns, end_ns) / 1e9
            for worker, gpus in by_worker.items()
        )


def _thrown_away(draft: Draft) -> list[Activity]:
    """Activities of attempts that a later one replaced, of loads given up, and of prefills nobody used."""
    reading = draft.reading
    recomputed = "recompute" in [activity.stage for activity in reading.activities]
    if draft.first_attempt_only and draft.outcome != "rejected" and not recomputed:
        return []
    activities = [a for a in reading.activities if a.stage not in _NEVER_WASTED]
    last: dict[str, int] = {}
    for item in (*draft.worker_visits(), *activities):
        if item.role:
            last[item.role] = max(last.get(item.role, 0), item.attempt)
    # D's own: its P side was for nothing. A retry's P recomputes as well, and what it did is used.
    recomputes = [a for a in activities if a.stage == "recompute" and a.role != "prefill"]
    redone_ns = min((a.start_ns for a in recomputes), default=0)
    redone_attempt = min((a.attempt for a in recomputes), default=0)
    return [
        a
        for a in activities
        if a.attempt < last.get(a.role, 0)
        or (a.stage in _REDONE and a.start_ns < redone_ns and a.attempt <= redone_attempt)
        or (draft.outcome == "rejected" and a.role == "prefill")
    ]


def _union_ns(activities: list[Activity], low_ns: int, high_ns: int) -> int:
    total, reach = 0, low_ns
    for activity in sorted(activities, key=lambda a: a.start_ns):
        start, end = max(activity.start_ns, reach), min(activity.end_ns, high_ns)
        if end > start:
            total += end - start
            reach = end
    return total
