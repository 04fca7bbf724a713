"""Which worker was P and which was D, where the span itself does not say.

Owns the order of evidence: the nearest caller that says so, the span's own hint, the shape of a P/D pair. Guesses
nothing else.
"""

from __future__ import annotations

from pdtrace.assemble.draft import Draft
from pdtrace.model import Envelope, Leg, Role, SpanKey


def resolve_roles(draft: Draft) -> None:
    """Give every envelope a role and the attempt of the leg that called it."""
    reading = draft.reading
    if not reading.envelopes:
        return
    callers: dict[SpanKey, Leg | Envelope] = {}
    for visit in draft.worker_visits():
        callers[visit.trace_id + visit.span_id] = visit
    for envelope in reading.envelopes:
        _inherit(envelope, draft, callers)
    open_role = [envelope for envelope in reading.envelopes if not envelope.role]
    for envelope in open_role:
        if len(reading.envelopes) > 1 or reading.legs:
            envelope.role = envelope.role_hint
    _pair([envelope for envelope in open_role if not envelope.role], draft)


def _inherit(envelope: Envelope, draft: Draft, callers: dict[SpanKey, Leg | Envelope]) -> None:
    span = draft.tree.find(envelope.trace_id, envelope.span_id)
    if span is None:
        return
    caller = callers.get(span.parent_key)  # as a rule, and then nobody further up is asked
    if caller is not None and _called_by(caller, envelope):
        return
    for above in draft.tree.ancestors(span):
        caller = callers.get(above.key)
        if caller is not None and _called_by(caller, envelope):
            return


def _called_by(caller: Leg | Envelope, envelope: Envelope) -> bool:
    """Take over what the caller knows; whether the role is known now."""
    envelope.attempt = max(envelope.attempt, caller.attempt)
    if not envelope.role and caller.role:
        envelope.role = caller.role
    if not envelope.worker:
        envelope.worker = caller.worker
    return bool(envelope.role)


def _pair(unknown: list[Envelope], draft: Draft) -> None:
    """A P/D pair that nobody labels: P makes one token and starts first. A single visit is aggregated."""
    if not unknown:
        return
    known = {envelope.role for envelope in draft.reading.envelopes if envelope.role}
    if len(unknown) == 1 and not known:
        only = unknown[0]
        only.role = only.role_hint or "aggregated"
        return
    if not known and _several_answers(unknown):
        for envelope in unknown:
            envelope.role = "aggregated"
        return
    unknown.sort(key=lambda e: (e.start_ns, e.span_id))
    if "prefill" not in known and len(unknown) > 1 and unknown[0].output_tokens == 1:
        unknown[0].role = "prefill"
        known.add("prefill")
    for envelope in unknown:
        if not envelope.role:
            complement: Role = "decode" if "prefill" in known else "prefill" if "decode" in known else "aggregated"
            envelope.role = complement
    draft.reading.warn(
        "role_from_order",
        "no span says which worker was P and which was D; told from their order and from P's single token",
    )


def _several_answers(visits: list[Envelope]) -> bool:
    """n answers, or a list of prompts: visits of one worker that all run at the same time, which P and D never are.

    Time is asked too because engines without a process id of their own may share a name.
    """
    together = max(visit.start_ns for visit in visits) < min(visit.end_ns or visit.start_ns + 1 for visit in visits)
    return together and len({visit.worker for visit in visits}) == 1
