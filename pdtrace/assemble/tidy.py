"""Activities made fit for the charging rule: each step is small and leaves a warning where it changed something.

Owns the steps "before the rule is applied" of definitions section 2. Does not charge.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pdtrace.assemble.draft import Draft
from pdtrace.model import Activity, Evidence
from pdtrace.stages import STAGES

_PROMPT_WORK = frozenset(("prefill", "prefill_opaque", "recompute"))


def drop_negative(draft: Draft) -> None:
    """An activity that ends before it starts says nothing: it is shown as a warning, never as time."""
    if not [True for activity in draft.reading.activities if activity.end_ns < activity.start_ns and activity.end_ns]:
        return
    kept = []
    for activity in draft.reading.activities:
        if activity.end_ns and activity.end_ns < activity.start_ns:
            draft.reading.warn(
                "negative_interval",
                f"{activity.dialect} {activity.stage} span {activity.span_id} ends "
                f"{activity.start_ns - activity.end_ns} ns before it starts; not charged",
            )
        else:
            kept.append(activity)
    draft.reading.activities = kept


def close_open(draft: Draft) -> None:
    """What has started and not ended lasts until now (live) or the last stamp seen (files)."""
    for item in (*draft.reading.activities, *draft.worker_visits(), *draft.reading.edges):
        if item.start_ns > draft.last_ns:
            draft.last_ns = item.start_ns
        if item.end_ns > draft.last_ns:
            draft.last_ns = item.end_ns
    for activity in draft.reading.activities:
        if not activity.end_ns:
            activity.end_ns = max(activity.start_ns, draft.horizon_ns)
            activity.detail = {**activity.detail, "open": True}


def cut_attempts(draft: Draft) -> None:
    """An attempt's activities end where the next attempt of that leg starts, declared hedges excepted."""
    activities = draft.reading.activities
    attempts = {item.attempt for item in (*draft.worker_visits(), *activities)}
    draft.first_attempt_only = attempts <= {0}
    if len(attempts) < 2:
        return
    starts: dict[str, dict[int, int]] = defaultdict(dict)
    for item in (*draft.worker_visits(), *activities):
        if item.role and not (isinstance(item, Activity) and item.hedge):
            known = starts[item.role].get(item.attempt)
            starts[item.role][item.attempt] = item.start_ns if known is None else min(known, item.start_ns)
    for activity in activities:
        later = [at for attempt, at in starts.get(activity.role, {}).items() if attempt > activity.attempt]
        if later and not activity.hedge and activity.end_ns > min(later):
            activity.end_ns = max(activity.start_ns, min(later))
            draft.reading.warn(
                "attempt_cut",
                f"{activity.stage} of attempt {activity.attempt} ends where attempt {activity.attempt + 1} starts",
            )


def cut_abandoned_loads(draft: Draft) -> None:
    """A load given up for a recompute ends where the recompute starts, whenever its span ends."""
    recomputes = [a.start_ns for a in draft.reading.activities if a.stage == "recompute"]
    if not recomputes:
        return
    for activity in draft.reading.activities:
        if activity.stage == "handoff":
            after = [start for start in recomputes if activity.start_ns <= start < activity.end_ns]
            if after:
                activity.end_ns = min(after)
                draft.reading.warn("load_given_up", "a KV load was given up for a recompute; it ends where that starts")


def name_repeats(draft: Draft) -> None:
    """Prompt work of a retry is ``recompute``: an earlier attempt had done it, or begun to, and its state is lost."""
    if draft.first_attempt_only:
        return
    prompt = [a for a in draft.reading.activities if a.stage in _PROMPT_WORK and not a.hedge]
    first = min((a.attempt for a in prompt), default=0)
    repeats = [a for a in prompt if a.stage == "prefill" and a.attempt > first]
    for activity in repeats:
        activity.stage = "recompute"
    if repeats:
        draft.reading.warn(
            "prompt_work_repeated", "a retry computed the prompt again: its prefill is shown as recompute"
        )


def merge_ranks(draft: Draft) -> None:
    """Ranks of one transfer (or pass) are one activity per chunk: the union of their intervals."""
    if not [True for activity in draft.reading.activities if activity.rank]:
        return
    ranked: dict[tuple[object, ...], list[Activity]] = defaultdict(list)
    result = []
    for activity in draft.reading.activities:
        if activity.rank:
            identity = (activity.stage, activity.role, activity.worker, activity.attempt, activity.chunk, activity.side)
            ranked[identity].append(activity)
        else:
            result.append(activity)
    for _, group in sorted(ranked.items(), key=lambda item: str(item[0])):
        result.extend(_union(group))
    draft.reading.activities = result


def _union(group: list[Activity]) -> list[Activity]:
    group.sort(key=lambda a: (a.start_ns, a.end_ns, a.rank, a.span_id))
    runs: list[list[Activity]] = []
    reach = 0
    for activity in group:
        if runs and activity.start_ns <= reach:
            runs[-1].append(activity)
            reach = max(reach, activity.end_ns)
        else:
            runs.append([activity])
            reach = activity.end_ns
    return [_merged(run) for run in runs]


def _merged(run: list[Activity]) -> Activity:
    if len(run) == 1:
        return run[0]
    ranks = [{"rank": a.rank, "start_ns": a.start_ns, "end_ns": a.end_ns, "span_id": a.span_id} for a in run]
    return replace(
        run[0],
        end_ns=max(a.end_ns for a in run),
        rank="",
        failed=any(a.failed for a in run),
        detail={**run[0].detail, "ranks": ranks},
    )


def settle_waits_for_transfer(draft: Draft) -> None:
    """A wait that spans the other side's work is evidence; what is left after the last transfer is D's queue."""
    waits = [a for a in draft.reading.activities if a.stage == "awaits_transfer"]
    if not waits:
        return
    others = [a for a in draft.reading.activities if a.stage != "awaits_transfer"]
    transfer_ends = [a.end_ns for a in others if a.stage == "handoff"]
    for wait in waits:
        draft.reading.evidence.append(
            Evidence(
                "waited_for_transfer",
                wait.end_ns - wait.start_ns,
                "ns",
                "D's wait for its KV: it spans P's work, so it is not work of its own and never charged as such",
                wait.span_id,
            )
        )
        if transfer_ends:
            left_from_ns = max(wait.start_ns, min(max(transfer_ends), wait.end_ns))
            if left_from_ns < wait.end_ns:
                others.append(replace(wait, stage="decode_queue", start_ns=left_from_ns))
    draft.reading.activities = others


_OPAQUE = {"prefill_opaque": "prefill", "decode_opaque": "decode"}
_FINE = frozenset(STAGES[:11]) - frozenset(_OPAQUE)


def note_opaque_workers(draft: Draft) -> None:
    """Say which side told nothing finer than its whole visit: its time has no name and no what-if."""
    activities = draft.reading.activities
    opaque = {(a.role, a.attempt, a.stage) for a in activities if a.stage in _OPAQUE}
    if not opaque:
        return
    told = {(a.role, a.attempt) for a in activities if a.stage in _FINE}
    for role, attempt, stage in sorted(opaque):
        if (role, attempt) not in told:
            draft.reading.warn(
                "opaque_worker",
                f"the {role or _OPAQUE[stage]} worker reports nothing finer than its whole visit: engine tracing is off, "
                "or has no finer spans",
            )
