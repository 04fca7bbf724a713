"""Worker envelopes to activities: exact durations placed from the right, and what is left of them as opaque.

Owns the rule "engine-level numbers without timestamps" of definitions section 2. Does not decide roles.

    envelope  |--------------------------------|      D's or P's own span
    known            time_in_model_prefill
              | queue |#######| first token           the duration ends at the stamp that is known; what lies before
                                                      it inside the envelope is the queue
"""

from __future__ import annotations

from pdtrace.assemble.draft import Draft
from pdtrace.charge.rule import CODE_OF_STAGE
from pdtrace.model import Activity, Envelope, Evidence, Leg

_FINE = frozenset(CODE_OF_STAGE) - {"container", "prefill_opaque", "decode_opaque"}


def place_envelopes(draft: Draft) -> None:
    """Turn envelopes and unanswered legs into activities."""
    for envelope in draft.reading.envelopes:
        _place_durations(envelope, draft)
    for envelope in draft.reading.envelopes:
        _add_opaque(envelope, draft)
    for leg in draft.reading.legs:
        _add_unanswered(leg, draft)


def _place_durations(envelope: Envelope, draft: Draft) -> None:
    reading = draft.reading
    if envelope.void_durations:
        reading.warn(
            "void_durations",
            f"{envelope.dialect} span {envelope.span_id} reports a negative duration: none of its durations is used",
        )
        return
    if envelope.prefill_ns is None:
        return
    first_token_ns = envelope.first_token_ns
    if first_token_ns is None:
        reading.evidence.append(
            Evidence(
                "unplaced_prefill",
                envelope.prefill_ns,
                "ns",
                "time in the model before the first token as the engine reports it; there is no first-token stamp to "
                "place it against",
                envelope.span_id,
            )
        )
        return
    cut_ns = first_token_ns - envelope.prefill_ns
    if cut_ns < envelope.start_ns:
        reading.warn(
            "duration_exceeds_envelope",
            f"{envelope.dialect} span {envelope.span_id}: its prefill time is {envelope.start_ns - cut_ns} ns longer "
            "than the time from its start to its first token; cut at its start",
        )
        cut_ns = envelope.start_ns
    waiting, working = _stages_of(envelope, draft)
    for stage, start_ns, end_ns in ((waiting, envelope.start_ns, cut_ns), (working, cut_ns, first_token_ns)):
        if end_ns > start_ns:
            reading.activities.append(_activity(envelope, stage, start_ns, end_ns))
    if waiting == "decode_queue" and working == "first_token":
        reading.warn(
            "may_hold_transfer",
            "D's wait before its first step may hold the KV transfer: the engine reports no stamp between them",
        )
    if envelope.queue_ns is not None:
        reading.evidence.append(
            Evidence(
                "queue_residual",
                cut_ns - envelope.start_ns - envelope.queue_ns,
                "ns",
                f"{waiting} as placed minus the queue time that the engine reports: waiting before its scheduler "
                "admitted the request, which no attribute holds",
                envelope.span_id,
            )
        )


def _stages_of(envelope: Envelope, draft: Draft) -> tuple[str, str]:
    if envelope.role != "decode":
        return "prefill_queue", "prefill"
    return "decode_queue", "prefill" if _without_p(draft) else "first_token"


def _without_p(draft: Draft) -> bool:
    """D computed the prompt: a dialect says so, or the caller's own spans show that it called D and no P."""
    reading = draft.reading
    if reading.facts.get("mode") == "prefill_on_decode":
        return True
    called = {leg.role for leg in reading.legs}
    seen = {envelope.role for envelope in reading.envelopes} | {activity.role for activity in reading.activities}
    return bool(reading.edges) and called == {"decode"} and "prefill" not in seen


def _activity(visit: Envelope | Leg, stage: str, start_ns: int, end_ns: int) -> Activity:
    return Activity(
        stage=stage,
        start_ns=start_ns,
        end_ns=end_ns,
        worker=visit.worker,
        role=visit.role,
        attempt=visit.attempt,
        clock=visit.clock,
        span_id=visit.span_id,
        dialect=visit.dialect,
        failed=visit.failed,
        gpus=visit.gpus if isinstance(visit, Envelope) else None,
    )


def _add_opaque(envelope: Envelope, draft: Draft) -> None:
    """The envelope itself, up to the last finer thing known in it: beyond that the worker reported all it did."""
    finer = [
        activity.end_ns
        for activity in draft.reading.activities
        if activity.stage in _FINE
        and activity.role == envelope.role
        and activity.attempt == envelope.attempt
        and activity.clock == envelope.clock
        and activity.start_ns >= envelope.start_ns
        and (not envelope.end_ns or activity.start_ns <= envelope.end_ns)
    ]
    end_ns = envelope.end_ns
    if finer and 0 not in finer:
        end_ns = min(max(finer), end_ns) if end_ns else max(finer)
    stage = "decode_opaque" if envelope.role == "decode" else "prefill_opaque"
    if not end_ns or end_ns > envelope.start_ns:
        draft.reading.activities.append(_activity(envelope, stage, envelope.start_ns, end_ns))


def _has_answered(leg: Leg, draft: Draft) -> bool:
    reading = draft.reading
    if not leg.role:
        return bool(reading.envelopes) or any(a.role for a in reading.activities)
    for visit in reading.envelopes:
        if visit.role == leg.role and visit.attempt == leg.attempt:
            return True
    return any(a.stage in _FINE and a.role == leg.role and a.attempt == leg.attempt for a in reading.activities)


def _add_unanswered(leg: Leg, draft: Draft) -> None:
    """A call to a worker that sent nothing of its own stands for that worker's envelope."""
    if _has_answered(leg, draft):
        return
    stage = "decode_opaque" if leg.role == "decode" else "prefill_opaque"
    draft.reading.activities.append(_activity(leg, stage, leg.start_ns, leg.end_ns))
    draft.reading.warn(
        "worker_sent_no_span",
        f"{leg.role or 'the called'} worker {leg.worker or '(unnamed)'} sent no span for a call to it; the call stands "
        "for its whole visit",
    )
