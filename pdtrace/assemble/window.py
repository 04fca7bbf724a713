"""The TTFT window: from arrival to the first user-visible token, on one clock; mode; other reported TTFTs.

Owns the choice of the basis and of the first token (definitions section 1). P's own first token never ends a window.
"""

from __future__ import annotations

from pdtrace.assemble.draft import Draft
from pdtrace.model import Activity, Edge, Envelope, Leg, TtftClaim

#: Held or reserved for a request: no sign that the worker has begun or is still at it.
_NOT_A_VISIT = frozenset(("kv_hold", "bootstrap"))
_LAST_STAMP_NS = 2**63 - 1
_BASES = ("client", "frontend", "router")


def open_window(draft: Draft) -> None:
    """Set edge, basis, t0, t1 (None: no first token that a user saw), and the claims beside it."""
    reading = draft.reading
    edges = sorted(reading.edges, key=lambda e: (e.start_ns, -e.end_ns, e.span_id))
    draft.edge = _window_edge(edges)
    first_token_ns = _first_token(draft, edges)
    if draft.edge is not None:
        draft.ttft_basis = draft.edge.kind
        draft.t0_ns = draft.edge.start_ns
    else:
        draft.ttft_basis = "engines"
        draft.t0_ns = _first_start(draft)
        reading.warn("no_edge_span", "no front end or router span: the window starts at the first worker's arrival")
        roles = {item.role for item in (*draft.worker_visits(), *reading.activities)}
        if "decode" in roles and "prefill" not in roles and not _prompt_on_decode(draft):
            text = "no span of P has come: the window starts at D's arrival, so what happened before is not in the TTFT"
            reading.warn("prefill_not_seen", text)
    draft.t1_ns = first_token_ns
    if first_token_ns is not None and first_token_ns > _LAST_STAMP_NS:
        reading.warn("first_token_out_of_range", "the first token is stamped beyond the year 2262: TTFT is unknown")
        draft.t1_ns = None
    elif first_token_ns is not None and first_token_ns < draft.t0_ns:
        reading.warn(
            "first_token_before_arrival",
            f"the first token is stamped {draft.t0_ns - first_token_ns} ns before the request's arrival: a clock is "
            "wrong, TTFT is unknown",
        )
        draft.t1_ns = None
    _claims(draft, edges)
    if draft.t1_ns is None:
        draft.ttft_basis = None


def _window_edge(edges: list[Edge]) -> Edge | None:
    """A client that saw the first token, else the outermost front end, else the outermost router."""
    for kind in _BASES:
        for edge in edges:
            if edge.kind == kind and (kind != "client" or edge.first_token_ns is not None):
                return edge
    return None


def _first_token(draft: Draft, edges: list[Edge]) -> int | None:
    if draft.edge is not None:
        if draft.edge.first_token_ns is not None:
            return draft.edge.first_token_ns
        inner = [e.first_token_ns for e in edges if e.first_token_ns is not None and e.kind != "client"]
        if inner:
            return min(inner)
        if draft.reading.facts.get("stream") is False:
            draft.reading.warn(
                "unary_answer", "the answer came in one piece and its edge reports no first token: TTFT is unknown"
            )
            return None
    answering = [
        visit.first_token_ns for visit in _answering(draft.reading.envelopes) if visit.first_token_ns is not None
    ]
    reported = draft.reading.facts.get("first_token_ns")
    if reported is not None:
        answering.append(int(reported))
    return min(answering, default=None)


def _answering(envelopes: list[Envelope]) -> list[Envelope]:
    return [e for e in envelopes if e.role in ("decode", "aggregated")]


def _first_start(draft: Draft) -> int:
    starts = [visit.start_ns for visit in draft.worker_visits()]
    starts += [a.start_ns for a in draft.reading.activities if a.role]
    starts = starts or [a.start_ns for a in draft.reading.activities]
    starts = starts or [span.start_ns for span in draft.tree.spans]
    return min(starts, default=min((record.time_ns for record in draft.group.records), default=0))


_MEASURES = {
    "client": "first content token as the client saw it, from its send",
    "frontend": "first token at the front end, from its arrival there",
    "router": "first token at the router, from its arrival there",
    "prefill_engine": "P's own first token, from its arrival on P: hand-over, not what the user saw",
    "decode_engine": "D's first token, from its arrival on D: without routing, P and the way to D",
}


def _claims(draft: Draft, edges: list[Edge]) -> None:
    """Every other TTFT that a component reported, once per name, beside the request's own."""
    claims = {claim.name: claim for claim in reversed(draft.reading.ttft_claims)}
    for edge in edges:
        if edge.first_token_ns is not None and edge is not draft.edge:
            _claim(claims, edge.kind, edge.first_token_ns - edge.start_ns)
    for visit in draft.reading.envelopes:
        if visit.first_token_ns is not None:
            name = "prefill_engine" if visit.role == "prefill" else "decode_engine"
            if visit.role != "aggregated" or draft.edge is not None:
                _claim(claims, name, visit.first_token_ns - visit.start_ns)
    draft.reading.ttft_claims = [claims[name] for name in sorted(claims)]


def _claim(claims: dict[str, TtftClaim], name: str, ttft_ns: int) -> None:
    if name and name not in claims and ttft_ns >= 0:
        claims[name] = TtftClaim(name, ttft_ns, _MEASURES[name])


def tell_mode(draft: Draft) -> None:
    """aggregated, sequential, overlapped, internal, prefill_on_decode or unknown; a dialect's own word wins."""
    stated = draft.reading.facts.get("mode")
    if stated:
        draft.mode = str(stated)
        return
    prefill, decode = _extent(draft, "prefill"), _extent(draft, "decode")
    if prefill and decode:
        draft.mode = "sequential" if decode[0] >= prefill[1] else "overlapped"
    elif decode and _prompt_on_decode(draft):
        draft.mode = "prefill_on_decode"
        draft.reading.warn("prefill_on_decode", "D computed the prompt itself: no P was used")
    elif not prefill and not decode and _extent(draft, "aggregated"):
        draft.mode = "aggregated"


def _prompt_on_decode(draft: Draft) -> bool:
    return any(a.stage == "prefill" and a.role == "decode" for a in draft.reading.activities)


def _extent(draft: Draft, role: str) -> tuple[int, int] | None:
    """First start and last end of the first attempt's visit to a role; callers' stamps where they exist.

    A caller's stamps are on one clock and say when D was called; a worker's own span may outlive its answer.
    """
    reading = draft.reading
    visits: list[Leg | Envelope | Activity] = []
    if reading.legs:
        visits += [leg for leg in reading.legs if leg.role == role and leg.end_is_trusted]
    if not visits and reading.envelopes:
        visits += [e for e in reading.envelopes if e.role == role]
    if not visits:
        visits += [a for a in reading.activities if a.role == role and a.stage not in _NOT_A_VISIT]
    if not visits:
        return None
    if not draft.first_attempt_only:
        first_attempt = min([visit.attempt for visit in visits])
        visits = [visit for visit in visits if visit.attempt == first_attempt]
    starts = [visit.start_ns for visit in visits]
    return min(starts), max(starts + [visit.end_ns for visit in visits])
