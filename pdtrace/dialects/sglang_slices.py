"""SGLang's slices: the leaf spans of a visit, as activities of the stages they name.

Owns slice names and what each really covers. Does not merge ranks, place waits or charge: assembly does.

Source: sglang 0.5.23 srt/observability/req_time_stats.py (RequestStage), srt/disaggregation/{prefill,decode}.py,
srt/disaggregation/mooncake/conn.py; sglang 0.5.5 for dispatch, dc_dispatch, mini_lb_launch and quick_finish.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdtrace.dialects.sglang_visits import Place, Visits
from pdtrace.model import Activity, Evidence, Reading, Span, SpanKey

_DIALECT: Final = "sglang"
#: Slices that are a stage as they stand.
_STAGE_OF: Final = {
    "mini_lb_launch": "route",
    "request_process": "prefill_queue",  # unified mode: received to entered the waiting queue
    "prefill_prepare": "prefill_queue",
    "prefill_waiting": "prefill_queue",
    "prefill_bootstrap": "bootstrap",
    "decode_prepare": "decode_queue",
    "decode_bootstrap": "decode_queue",  # D reserves pages; while P waits for it, P's bootstrap is charged
    "decode_waiting": "decode_queue",
    "decode_transferred": "awaits_transfer",  # spans all of P's work
}
#: Slices either side makes: the queue of the side that made them.
_INTAKE: Final = frozenset(("tokenize", "api_server_dispatch", "dispatch", "dpc_dispatch", "dc_dispatch"))
_PREFILL: Final = frozenset(("prefill_forward", "chunked_prefill"))
_FIRST_OUTPUT: Final = frozenset(("fake_output", "quick_finish"))


def read_slices(mine: Sequence[Span], visits: Visits, out: Reading) -> dict[SpanKey, int]:
    """Append the activities of all slices.

    Returns:
        Key of a decode root -> end of its first output slice (Unix ns, D's clock): the first token where the root
        itself reports none.
    """
    passes, sends, sessions, loops, first_outputs, decodes = [], [], [], [], [], []
    for span in mine:
        name = span.name
        if name in _STAGE_OF:
            place = visits.place(span)
            out.activities.append(_activity(_STAGE_OF[name], span, place))
        elif name in _INTAKE:
            place = visits.place(span)
            if place.role:
                stage = "decode_queue" if place.role == "decode" else "prefill_queue"
                out.activities.append(_activity(stage, span, place))
        elif name in _PREFILL:
            passes.append(span)
        elif name == "prefill_transfer_kv_cache":
            tail = _activity("handoff", span, visits.place(span), chunk="tail", side="send")
            out.activities.append(tail)
        elif name == "mooncake_worker_send":
            sends.append(span)
        elif name == "mooncake_worker_send_session":
            sessions.append(span)
        elif name in _FIRST_OUTPUT:
            first_outputs.append(span)
        elif name == "decode_loop":
            loops.append(span)
        elif name == "decode_forward":
            decodes.append(span)
        elif name == "mm_encode":
            text = "multimodal encoding on SGLang's encoder: no stage of the TTFT decomposition covers it"
            out.evidence.append(Evidence("mm_encode", span.end_ns - span.start_ns, "ns", text, span.span_id))
    _read_passes(passes, visits, out)
    # A session is one destination inside a send: it counts only where the send itself did not arrive.
    for place, number, span in visits.rooms_and_ranks(sends or sessions):
        out.activities.append(_activity("handoff", span, place, chunk=str(number), side="send", backend="mooncake"))
    ends = _read_first_outputs(first_outputs, decodes, visits, out)
    _read_tokens(first_outputs, loops, visits, out)
    return ends


def _activity(stage: str, span: Span, place: Place, *, chunk: str = "", side: str = "", backend: str = "") -> Activity:
    return Activity(
        stage=stage,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        worker=place.worker,
        role=place.role,
        attempt=place.attempt,
        clock=place.clock,
        span_id=span.span_id,
        dialect=_DIALECT,
        rank=place.rank,
        chunk=chunk,
        side="send" if side == "send" else "",
        failed=span.status == 2,
        detail={"backend": backend} if backend else {},
    )


def _read_passes(passes: list[Span], visits: Visits, out: Reading) -> None:
    """Chunks where there are any below a forward, else the forward; old chunks are the forward's siblings."""
    with_chunks = {span.parent_key for span in passes if span.name == "chunked_prefill"}
    leaves = [span for span in passes if span.key not in with_chunks]
    for place, number, span in visits.rooms_and_ranks(leaves):
        out.activities.append(_activity("prefill", span, place, chunk=str(number)))
        scheduled = [event.time_ns for event in span.events if event.name == "schedule"]
        if visits.is_old_form and scheduled:
            text = "from the start of this forward slice to its batch being scheduled: the queue that it includes"
            out.evidence.append(
                Evidence("queue_inside_prefill", min(scheduled) - span.start_ns, "ns", text, span.span_id)
            )


def _read_first_outputs(
    first_outputs: list[Span], decodes: list[Span], visits: Visits, out: Reading
) -> dict[SpanKey, int]:
    """The first_token stage on D: from its first slice in a batch to the token leaving D, if the root says when."""
    ends: dict[SpanKey, int] = {}
    places_seen = set()
    for place, _, span in visits.rooms_and_ranks(first_outputs):
        places_seen.add(place)
        out.activities.append(_activity("first_token", span, place))
        root = visits.answering_root(span)
        if root is None:
            out.fact("first_token_ns", span.end_ns)
            out.fact("first_token_clock", place.clock)
            continue
        ends[root.key] = min(span.end_ns, ends.get(root.key, span.end_ns))
        _read_emission(span.end_ns, root, span, place, visits, out)
    for span in decodes:  # trace level below 3: no slice of the first output
        place = visits.place(span)
        root = visits.answering_root(span)
        if place.role == "decode" and place not in places_seen and root is not None:
            _read_emission(span.start_ns, root, span, place, visits, out)
    return ends


def _read_emission(start_ns: int, root: Span, span: Span, place: Place, visits: Visits, out: Reading) -> None:
    """The scheduler made the token at ``start_ns``; it left D when the root's own TTFT says."""
    ttft_ns = visits.ttft_ns(root)
    if ttft_ns is not None and root.start_ns + ttft_ns > start_ns:
        emission = _activity("first_token", span, place)
        emission.start_ns, emission.end_ns = start_ns, root.start_ns + ttft_ns
        emission.detail["part"] = "emission"
        out.activities.append(emission)


def _read_tokens(first_outputs: list[Span], loops: list[Span], visits: Visits, out: Reading) -> None:
    """Token times from one rank (all ranks make the same tokens): the first output, then each decode_loop's end."""
    by_place: dict[Place, list[int]] = {}
    for span in (*first_outputs, *loops):
        by_place.setdefault(visits.place(span), []).append(span.end_ns)
    if by_place:
        last_attempt = max(place.attempt for place in by_place)
        chosen = min(place for place in by_place if place.attempt == last_attempt)
        out.fact("token_times", sorted(end for end in by_place[chosen] if end))
    retractions = [event for span in loops for event in span.events if event.name == "retract"]
    if retractions:
        text = "times D took the running request out of its batch for want of memory; seen as events on decode_loop"
        out.evidence.append(Evidence("retractions", len(retractions), "", text))
        out.warn("retracted", f"D took the request out of its batch {len(retractions)} times for want of memory")
