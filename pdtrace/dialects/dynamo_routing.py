"""Dynamo's routing spans and worker envelopes: select_worker, route_request, handle_payload.

Owns legs, attempts, envelopes, causal edges and the mode. Does not judge the whole request (dynamo_frontend does).

    http-request            frontend   |------------------------------------------|
      select_worker         frontend     |-|                 |-|
      route_request         frontend        |--- Prefill ---|   |---- Decode ----------|
        handle_payload      worker            |-- opaque --|      |---- opaque ------|
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from pdtrace.dialects.contract import Tree, as_int, clock_of
from pdtrace.model import Activity, Before, Envelope, Evidence, Failure, Leg, Reading, Role, Span, SpanKey

DIALECT: Final = "dynamo"

_ROLE_OF_PHASE: Final[dict[str, Role]] = {"Prefill": "prefill", "Decode": "decode", "Aggregated": "aggregated"}
_FailedStage = Literal["", "prefill", "decode"]
_STAGE_OF_ROLE: Final[dict[Role, _FailedStage]] = {"prefill": "prefill", "decode": "decode", "aggregated": "", "": ""}
#: request.outcome of a leg that failed; ``success`` and ``cancelled`` are no failures.
_FAILED_OUTCOMES: Final = frozenset({"error", "worker_disconnected", "connection_failed"})


def role_of_phase(phase: object) -> Role:
    """Role of the worker behind a route_request, from its ``phase``; "" if the phase is unknown."""
    return _ROLE_OF_PHASE.get(str(phase), "")


def failed_stage(leg: Leg) -> _FailedStage:
    """The stage a failure of ``leg`` belongs to; "" for an aggregated worker, which may have failed in either."""
    return _STAGE_OF_ROLE[leg.role]


def read(mine: Sequence[Span], tree: Tree, out: Reading) -> None:
    """Append what the routing and worker spans among ``mine`` (sorted by start) say."""
    legs = _read_legs([s for s in mine if s.name == "kv_router.route_request"], out)
    _read_choices([s for s in mine if s.name == "kv_router.select_worker"], legs, tree, out)
    _read_envelopes([s for s in mine if s.name == "handle_payload"], legs, tree, out)
    in_order = list(legs.values())
    _tell_workers(in_order, out)
    out.fact("mode", _mode(in_order))


def _read_legs(routes: Sequence[Span], out: Reading) -> dict[SpanKey, Leg]:
    """Legs by span key. Attempts are counted by start order, per caller, role and request id.

    ``request.attempt`` alone is not enough: a migration runs the prefill again with request.attempt 0. Counting per
    request id keeps the prompts of one /v1/completions list, which run side by side, from looking like retries.
    """
    legs: dict[SpanKey, Leg] = {}
    seen: dict[tuple[str, str, str, str], int] = {}
    for span in routes:
        attributes = span.attributes
        role = role_of_phase(attributes.get("phase"))
        caller = (span.trace_id, span.parent_id, role, str(attributes.get("request_id", "")))
        attempt = max(seen.get(caller, 0), as_int(attributes.get("request.attempt")) or 0)
        seen[caller] = attempt + 1
        outcome = str(attributes.get("request.outcome", ""))
        failed = outcome in _FAILED_OUTCOMES or (span.status == 2 and outcome not in ("success", "cancelled"))
        leg = Leg(
            role=role,
            worker=_worker_id(attributes.get("worker_id")),
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            dialect=DIALECT,
            trace_id=span.trace_id,
            attempt=attempt,
            failed=failed,
            error=_leg_error(span, outcome) if failed else "",
        )
        legs[span.key] = leg
        out.legs.append(leg)
        if failed:
            _tell_failure(leg, out)
        _tell_prediction(span, leg, out)
    if legs:
        out.fact("attempts", 1 + max(leg.attempt for leg in legs.values()))
    return legs


def _leg_error(span: Span, outcome: str) -> str:
    kind = str(span.attributes.get("error.type", ""))
    return " ".join(part for part in (outcome or "error", kind if kind != outcome else "", span.status_message) if part)


def _tell_failure(leg: Leg, out: Reading) -> None:
    text = f"call to {leg.role or 'unknown'} worker {leg.worker or 'unknown'} failed: {leg.error}"
    out.failures.append(Failure(failed_stage(leg), text, leg.end_ns, leg.worker, leg.attempt))


def _tell_prediction(span: Span, leg: Leg, out: Reading) -> None:
    blocks = as_int(span.attributes.get("overlap_blocks"))
    if blocks is None or leg.role == "decode":  # 0 on decode by design: D is not chosen for its prefix cache
        return
    text = f"KV blocks that the router predicted to be cached on {leg.role} worker {leg.worker}; not what P found"
    out.evidence.append(Evidence("predicted_overlap_blocks", blocks, "blocks", text, span.span_id))


def _read_choices(choices: Sequence[Span], legs: dict[SpanKey, Leg], tree: Tree, out: Reading) -> None:
    """select_worker is ``route``; the idle part of its ``.schedule`` child is ``router_queue``."""
    for span in choices:
        leg = _leg_after(span, legs, tree)
        phase = leg.role if leg else ""
        detail = {"phase": phase, "chosen": leg.worker if leg else ""}
        attempt = leg.attempt if leg else 0
        clock = clock_of(span)
        out.activities.append(
            Activity(
                stage="route",
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                attempt=attempt,
                clock=clock,
                span_id=span.span_id,
                dialect=DIALECT,
                detail=detail,
            )
        )
        for child in tree.children(span):
            wait = _queue_wait(child) if child.name == "kv_router.schedule" else None
            if wait is not None:
                out.activities.append(
                    Activity(
                        stage="router_queue",
                        start_ns=child.end_ns - wait,
                        end_ns=child.end_ns,
                        attempt=attempt,
                        clock=clock,
                        span_id=child.span_id,
                        dialect=DIALECT,
                        detail=detail,
                    )
                )


def _queue_wait(span: Span) -> int | None:
    """Ns that a ``.schedule`` span spent waiting, or None if it does not say.

    ``busy_ns`` is the time in which the span's own task ran, ``idle_ns`` the time in which it waited for the scheduler
    to admit the request (tracing-rs). The wait ends where the span ends, but for the microseconds of the last poll.
    """
    if not span.end_ns:
        return None
    idle = as_int(span.attributes.get("idle_ns"))
    if idle is None or idle <= 0:
        return None
    return min(idle, span.end_ns - span.start_ns)  # idle is measured by another clock than the stamps: a few us apart


def _leg_after(choice: Span, legs: dict[SpanKey, Leg], tree: Tree) -> Leg | None:
    """The leg that a choice led to: the next one of the same caller, unless another choice comes first."""
    caller = tree.parent(choice)
    siblings = tree.children(caller) if caller else [s for s in tree.spans if s.parent_id == choice.parent_id]
    for span in siblings:
        if span.start_ns < choice.start_ns or span.key == choice.key:
            continue
        if span.name == "kv_router.select_worker":
            return None
        if span.key in legs:
            return legs[span.key]
    return None


def _read_envelopes(payloads: Sequence[Span], legs: dict[SpanKey, Leg], tree: Tree, out: Reading) -> None:
    for span in payloads:
        worker = _worker_id(span.attributes.get("instance_id"))
        clock = f"process:{worker}"  # service.name is shared by all workers of a pool
        parent = tree.parent(span)
        leg = legs.get(parent.key) if parent else None
        hint: Role = "prefill" if span.attributes.get("component") == "prefill" else ""
        events = [event.name for event in span.events]
        out.envelopes.append(
            Envelope(
                role=leg.role if leg and leg.role else hint,
                worker=worker,
                start_ns=span.start_ns,
                end_ns=span.end_ns,
                clock=clock,
                span_id=span.span_id,
                dialect=DIALECT,
                trace_id=span.trace_id,
                attempt=leg.attempt if leg else 0,
                role_hint=hint,
                failed=span.status == 2,
                error=span.status_message,
                finished="request completed" in events and "request cancellation received" not in events,
            )
        )
        if leg:
            out.before.append(Before(leg.clock, leg.start_ns, clock, span.start_ns, "request sent before received"))
            if leg.end_ns and not leg.failed:
                why = "worker began before its reply ended"
                out.before.append(Before(clock, span.start_ns, leg.clock, leg.end_ns, why))


def _tell_workers(legs: Sequence[Leg], out: Reading) -> None:
    """The workers of the last attempt that did not fail; http-request would still name a dead decode worker."""
    for leg in sorted(legs, key=lambda each: (each.failed, -each.start_ns)):
        if leg.role in ("prefill", "aggregated"):
            out.fact("prefill_worker", leg.worker)
        if leg.role in ("decode", "aggregated"):
            out.fact("decode_worker", leg.worker)


def _mode(legs: Sequence[Leg]) -> str | None:
    """How the two workers were called, from the caller's own stamps: one clock, so no offset can turn the answer.

    sequential: Decode was dispatched after Prefill had answered. overlapped: before (Dynamo's bootstrap mode).
    """
    if "aggregated" in [leg.role for leg in legs]:
        return "aggregated"
    prefills = {leg.attempt: leg for leg in reversed(legs) if leg.role == "prefill"}
    for decode in legs:
        prefill = prefills.get(decode.attempt)
        if decode.role == "decode" and prefill is not None:
            answered = prefill.end_ns != 0 and prefill.end_ns <= decode.start_ns
            return "sequential" if answered else "overlapped"
    return None


def _worker_id(value: object) -> str:
    return "" if value is None else str(value)
