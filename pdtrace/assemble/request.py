"""Fragments in, finished requests out: the ordered steps between identified spans and charged sections.

Owns the order. Each step is a function of its own module; nothing here knows an engine or a table.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from pdtrace.assemble import clocks, envelopes, outcome, roles, tidy, window
from pdtrace.assemble.draft import Draft, Limits
from pdtrace.assemble.group import Group, group
from pdtrace.assemble.noise import telling_spans
from pdtrace.charge import Activities, is_chain, savings, savings_of_chain
from pdtrace.charge import charge as charge_windows
from pdtrace.charge.rule import CODE_OF_STAGE, Ints
from pdtrace.dialects import DIALECTS
from pdtrace.dialects.contract import Tree
from pdtrace.model import (
    Activity,
    Evidence,
    Identity,
    Key,
    Reading,
    Record,
    Request,
    Section,
    Span,
    SpanKey,
)
from pdtrace.stages import STAGES

_BY_TIME: Final = attrgetter("start_ns", "end_ns", "stage", "span_id")

log = logging.getLogger(__name__)

#: The steps from what was read to what is charged, in order; a test pins it.
STEPS: Final = (
    roles.resolve_roles,
    envelopes.place_envelopes,
    tidy.drop_negative,
    clocks.align_clocks,
    tidy.close_open,
    tidy.cut_attempts,
    tidy.name_repeats,
    tidy.cut_abandoned_loads,
    tidy.merge_ranks,
    tidy.settle_waits_for_transfer,
    tidy.note_opaque_workers,
    window.open_window,
    window.tell_mode,
    outcome.judge,
)


_ORDER: Final = {dialect.name: place for place, dialect in enumerate(DIALECTS)}

#: Requests charged in one call: enough for dense blocks, few enough for drafts to stay in the CPU caches.
_CHARGED_TOGETHER: Final = 512


def identify(span: Span) -> Identity | None:
    """The identity the first dialect that knows ``span`` gives it; None if no dialect claims it."""
    for dialect in DIALECTS:
        identity = dialect.identify(span)
        if identity is not None:
            return identity
    return None


def keys_of_record(record: Record) -> tuple[Key, ...] | None:
    """Join keys of ``record`` by the dialect that reads it; None if no dialect does."""
    for dialect in DIALECTS:
        keys = dialect.record_keys(record)
        if keys is not None:
            return keys
    return None


def derive(
    spans: Sequence[Span],
    records: Sequence[Record] = (),
    *,
    now_ns: int | None = None,
    limits: Limits | None = None,
    identities: dict[SpanKey, Identity] | None = None,
    run: str | None = None,
) -> list[Request]:
    """All requests that ``spans`` and ``records`` hold, with charged sections: a pure function of its arguments.

    Args:
        spans: In any order; of equal (trace_id, span_id) only one may be given.
        records: Facts that did not come as spans.
        now_ns: Wall clock of a live service; None for files, where what is open is ``unknown``.
        limits: Clock shift and quiet time.
        identities: Identities already known by span key (they are computed otherwise).
        run: Label for requests that carry none.

    Returns:
        Requests by window start.
    """
    known = {} if identities is None else identities
    of_span: dict[SpanKey, Identity] = {}
    for span in spans:
        identity = known.get(span.key) or identify(span)
        if identity is not None:
            of_span[span.key] = identity
    telling = telling_spans(spans, of_span)
    keyed = [(record, keys) for record in records if (keys := keys_of_record(record)) is not None]
    limits = limits or Limits()
    groups = group(telling, of_span, keyed)
    requests: list[Request] = []
    for first in range(0, len(groups), _CHARGED_TOGETHER):
        drafts = [_draft(g, of_span, now_ns, limits) for g in groups[first : first + _CHARGED_TOGETHER]]
        requests += _charge(drafts, run)
    requests.sort(key=lambda r: (r.t0_ns, r.uid))
    return requests


def _draft(fragments: Group, identities: dict[SpanKey, Identity], now_ns: int | None, limits: Limits) -> Draft:
    tree = Tree(fragments.spans, identities)
    reading = Reading(warnings=list(fragments.warnings))
    dialects = {identities[span.key].dialect for span in tree.spans}
    for name in dialects if len(dialects) < 2 else sorted(dialects, key=_ORDER.__getitem__):
        mine = tree.spans if len(dialects) == 1 else [s for s in tree.spans if identities[s.key].dialect == name]
        DIALECTS[_ORDER[name]].read(mine, tree, reading)
    for record in sorted(fragments.records, key=lambda r: (r.kind, r.time_ns, r.key)):
        for dialect in DIALECTS:
            if dialect.record_keys(record) is not None:
                dialect.read_record(record, reading)
                break
    if tree.spans:
        last_ns = max(tree.spans[-1].start_ns, *[span.end_ns for span in tree.spans])
    else:
        last_ns = max((record.time_ns for record in fragments.records), default=0)
    draft = Draft(fragments, tree, reading, limits, now_ns, dialects=dialects, last_ns=last_ns)
    for step in STEPS:
        step(draft)
    _note_links(draft)
    return draft


def _note_links(draft: Draft) -> None:
    """Links to spans that are not part of the request are listed, never followed blindly."""
    for span in draft.tree.spans:
        if not span.links:
            continue
        for trace_id, span_id in span.links:
            if draft.tree.find(trace_id, span_id) is None:
                draft.reading.evidence.append(
                    Evidence(
                        "link_outside",
                        f"{trace_id}/{span_id}",
                        "",
                        "a span link to a span that is not part of this request (outside this store, or another request)",
                        span.span_id,
                    )
                )


# ------------------------------------------------------------------------------------------------------ charging


def _charge(drafts: list[Draft], run: str | None) -> list[Request]:
    """Charge all windows in one batch, then build the requests."""
    ends = [_window_end(draft) for draft in drafts]
    charged = charge_windows(
        np.array([draft.t0_ns for draft in drafts], dtype=np.int64), np.array(ends, dtype=np.int64), _rows(drafts, ends)
    )
    stages = map(STAGES.__getitem__, charged.stage.tolist())
    sections = list(map(Section, stages, charged.start_ns.tolist(), charged.end_ns.tolist()))
    offsets = charged.offsets.tolist()
    exposed, hidden = _by_stage(charged.exposed_ns), _by_stage(charged.hidden_ns)
    return [
        _request(draft, sections[offsets[row] : offsets[row + 1]], exposed[row], hidden[row], run)
        for row, draft in enumerate(drafts)
    ]


def _by_stage(totals_ns: Ints) -> list[dict[str, int]]:
    """(N, 15) totals as one dictionary a request, without the stages that have none, in the order of STAGES."""
    result: list[dict[str, int]] = [{} for _ in totals_ns]
    rows, codes = np.nonzero(totals_ns)
    for row, code, ns in zip(rows.tolist(), codes.tolist(), totals_ns[rows, codes].tolist(), strict=True):
        result[row][STAGES[code]] = ns
    return result


_INT64_MAX: Final = 2**63 - 1
_CONTAINER: Final = CODE_OF_STAGE["container"]


def _window_end(draft: Draft) -> int:
    if draft.t1_ns is not None:
        return draft.t1_ns
    end_ns = draft.end_ns if draft.end_ns is not None else draft.horizon_ns
    return min(max(draft.t0_ns, end_ns), _INT64_MAX)


def _rows(drafts: list[Draft], window_ends_ns: list[int]) -> Activities:
    """What the rule charges: activities of a stage it knows, and edges, which hold the request while nothing finer does.

    An open edge lasts to the end of the window.
    """
    offsets, codes, starts_ns, ends_ns = [0], list[int](), list[int](), list[int]()
    for draft, window_end_ns in zip(drafts, window_ends_ns, strict=True):
        for activity in draft.reading.activities:
            code = CODE_OF_STAGE.get(activity.stage)
            if code is not None:
                codes.append(code)
                starts_ns.append(activity.start_ns)
                ends_ns.append(activity.end_ns)
        for edge in draft.reading.edges:
            codes.append(_CONTAINER)
            starts_ns.append(edge.start_ns)
            ends_ns.append(edge.end_ns or max(edge.start_ns, window_end_ns))
        offsets.append(len(codes))
    return Activities(
        np.array(offsets, dtype=np.int64), np.array(codes, dtype=np.int8), _stamps(starts_ns), _stamps(ends_ns)
    )


def _stamps(stamps_ns: list[int]) -> Ints:
    try:
        return np.array(stamps_ns, dtype=np.int64)
    except OverflowError:  # a damaged stamp or duration: beyond what 64 bits hold is beyond any window
        return np.array([min(stamp, _INT64_MAX) for stamp in stamps_ns], dtype=np.int64)


def _request(
    draft: Draft, sections: list[Section], exposed_ns: dict[str, int], hidden_ns: dict[str, int], run: str | None
) -> Request:
    reading, facts, spans, records = draft.reading, draft.reading.facts, draft.tree.spans, draft.group.records
    traces = {span.trace_id for span in spans}
    uid = _uid(draft)
    _note_wait_after_failure(draft)
    # Fields are set one by one: a call with this many keywords costs five times as much.
    request = Request(uid, "")
    request.trace_ids = sorted(traces.union([r.trace_id for r in records if r.trace_id]) if records else traces)
    request.sources = sorted(traces.union([record.source for record in records]) if records else traces)
    request.dialects = sorted(draft.dialects.union(map(_reader_of, records)) if records else draft.dialects)
    request.request_id = str(facts.get("request_id") or (request.trace_ids[0] if request.trace_ids else uid))
    request.aliases = [str(alias) for alias in facts.get("aliases", ())]
    request.model = _text(facts.get("model"))
    request.run = _text(facts.get("run")) or run
    request.outcome = draft.outcome
    request.outcome_text = draft.outcome_text
    request.mode = draft.mode
    request.t0_ns = draft.t0_ns
    request.t1_ns = draft.t1_ns
    request.end_ns = draft.end_ns
    request.last_ns = draft.last_ns
    request.received_ns = max([span.received_ns for span in spans], default=0)
    request.clock = draft.clock
    request.ttft_basis = draft.ttft_basis
    request.ttft_claims = reading.ttft_claims
    request.prefill_worker, request.decode_worker = _workers(draft)
    request.input_tokens = _tokens(draft, "input_tokens")
    request.output_tokens = _tokens(draft, "output_tokens")
    request.cached_tokens = _cached_tokens(draft)
    request.attempts = _attempts(draft)
    request.stitched_by = draft.group.stitched_by
    request.hidden_ns = hidden_ns
    if draft.t1_ns is None:
        request.sections_to_end = sections
    else:
        request.ttft_ns = draft.t1_ns - draft.t0_ns
        request.sections = sections
        request.saving_ns = _savings(draft, sections, exposed_ns, hidden_ns)
    request.wasted_ns = draft.wasted_ns
    request.wasted_gpu_seconds = draft.wasted_gpu_seconds
    for edge in reading.edges:
        if edge.http_status is not None:
            request.http_status = edge.http_status
            break
    request.activities = sorted([*reading.activities, *_shown_containers(draft)], key=_BY_TIME)
    request.evidence = reading.evidence
    request.warnings = reading.warnings
    request.offsets = draft.offsets
    request.token_times_ns = sorted(facts.get("token_times", ()))
    request.span_count = len(spans)
    return request


def _uid(draft: Draft) -> str:
    """Named after the edge span, else the first span, else the first record: the same for the same spans."""
    if len(draft.reading.edges) == 1:
        anchor = f"{draft.reading.edges[0].trace_id}/{draft.reading.edges[0].span_id}"
    elif draft.reading.edges:
        edge = min(draft.reading.edges, key=lambda e: (e.start_ns, e.trace_id, e.span_id))
        anchor = f"{edge.trace_id}/{edge.span_id}"
    elif draft.tree.spans:
        anchor = draft.tree.spans[0].key
    else:
        anchor = min(record.source for record in draft.group.records)
    return hashlib.blake2b(anchor.encode(), digest_size=10).hexdigest()


def _reader_of(record: Record) -> str:
    return next(dialect.name for dialect in DIALECTS if dialect.record_keys(record) is not None)


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)


def _workers(draft: Draft) -> tuple[str | None, str | None]:
    """The workers of the last attempt, by their own name before their caller's; an aggregated worker is both."""
    facts = draft.reading.facts
    return (
        _text(facts.get("prefill_worker")) or _last_worker(draft, "prefill"),
        _text(facts.get("decode_worker")) or _last_worker(draft, "decode"),
    )


def _last_worker(draft: Draft, role: str) -> str | None:
    reading, roles = draft.reading, (role, "aggregated")
    visits = [(e.attempt, True, -e.start_ns, e.worker) for e in reading.envelopes if e.role in roles]
    visits += [(leg.attempt, False, -leg.start_ns, leg.worker) for leg in reading.legs if leg.role in roles]
    if visits:
        return max([visit for visit in visits if visit[3]], default=(0, False, 0, None))[3]
    working = [a for a in reading.activities if a.role in roles and a.worker]
    if len({a.worker for a in working}) > 1:
        return max(working, key=_recency).worker
    return working[0].worker if working else None


def _recency(activity: Activity) -> tuple[int, int, str]:
    return activity.attempt, -activity.start_ns, activity.worker


def _tokens(draft: Draft, name: str) -> int | None:
    stated = draft.reading.facts.get(name)
    if isinstance(stated, int):
        return stated
    if not draft.reading.envelopes:
        return None
    wanted = ("decode", "aggregated") if name == "output_tokens" else ("prefill", "aggregated", "decode")
    for role in wanted:
        values = [getattr(e, name) for e in draft.reading.envelopes if e.role == role]
        known = [value for value in values if value is not None]
        if known:
            return int(sum(known)) if name == "output_tokens" and role == "aggregated" else int(max(known))
    return None


def _cached_tokens(draft: Draft) -> int | None:
    """Tokens that P really found cached; D's number is what it received, never a prefix hit."""
    stated = draft.reading.facts.get("cached_tokens")
    if isinstance(stated, int):
        return stated
    known = [
        e.cached_tokens
        for e in draft.reading.envelopes
        if e.role in ("prefill", "aggregated") and e.cached_tokens is not None
    ]
    return known[-1] if known else None


def _attempts(draft: Draft) -> int:
    stated = int(draft.reading.facts.get("attempts") or 1)
    if draft.first_attempt_only:
        return max(1, stated)
    seen = [i.attempt for i in (*draft.worker_visits(), *draft.reading.activities)]
    return max(max(seen, default=0) + 1, stated)


def _savings(
    draft: Draft, sections: list[Section], exposed_ns: dict[str, int], hidden_ns: dict[str, int]
) -> dict[str, int | None]:
    assert draft.t1_ns is not None
    if is_chain(sections, hidden_ns):
        return savings_of_chain(exposed_ns)
    activities = [(a.stage, a.start_ns, a.end_ns) for a in draft.reading.activities]
    return savings(draft.t0_ns, draft.t1_ns, sections, activities)


def _shown_containers(draft: Draft) -> list[Activity]:
    return [
        Activity(
            "container",
            edge.start_ns,
            edge.end_ns or max(edge.start_ns, draft.horizon_ns),
            edge.kind,
            "",
            0,
            edge.clock,
            edge.span_id,
            edge.dialect,
            detail={} if edge.end_ns else {"open": True},
        )
        for edge in draft.reading.edges
    ]


def _note_wait_after_failure(draft: Draft) -> None:
    """Time that passed after the failure that decided the outcome: nobody told the other side."""
    if not draft.outcome.startswith("failed_"):
        return
    stage = draft.outcome.removeprefix("failed_")
    times = [f.time_ns for f in draft.reading.failures if f.stage == stage and f.time_ns]
    end_ns = draft.end_ns if draft.end_ns is not None else draft.last_ns
    if times and end_ns > min(times):
        draft.reading.evidence.append(
            Evidence(
                "waited_after_failure",
                end_ns - min(times),
                "ns",
                f"the request went on waiting for a {stage} that had already failed",
            )
        )
