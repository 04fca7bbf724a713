"""SGLang engines: which spans are SGLang's and what a request's SGLang spans say, in the current form and the old.

Owns identification, envelopes, keys, failures and claims. The slices inside a visit are read in sglang_slices.

Names: sglang 0.5.23 (srt/observability/trace.py, req_time_stats.py) and, where marked old, sglang 0.5.5
(srt/tracing/trace.py, the room-rooted form with the Python mini_lb). Both were seen in captures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdtrace.dialects.contract import SpansOnly, Tree
from pdtrace.dialects.sglang_slices import read_slices
from pdtrace.dialects.sglang_visits import (
    BOOTSTRAP_ROOM,
    SENDER,
    Visits,
    finish_reasons,
    is_thread,
    request_root,
    room_of,
)
from pdtrace.model import Before, Edge, Envelope, Evidence, Failure, Identity, Key, Reading, Role, Span, TtftClaim

NAME = "sglang"
SCOPE = "sglang server"
#: `/health_generate` runs a real request under this id (managers/io_struct.py: HEALTH_CHECK_RID_PREFIX).
HEALTH_CHECK = "HEALTH_CHECK"

_STAGE = Identity(NAME, "stage")
_NOISE = Identity(NAME, "noise")
_FASTAPI = Identity("fastapi", "noise")  # a name of its own: what is below such a span is not noise with it


class SglangDialect(SpansOnly):
    """SGLang prefill, decode and unified servers, mooncake senders, and the old form with its mini_lb."""

    name = NAME
    blind_spots = (
        "SGLang's spans do not say whether an answer was streamed, nor how many bytes of KV moved.",
        "Without --trace-modules request,mooncake only the tail of the KV transfer is seen, not its earlier chunks.",
        "The old form (0.5.5) has no waiting slices: prefill_forward includes P's queue, fake_output D's.",
        "A prefill server that refuses a request at its HTTP layer sends no span.",
    )

    def identify(self, span: Span) -> Identity | None:
        """By scope; request and sender roots by their `rid`; everything else of the scope is a stage."""
        if span.scope != SCOPE:
            if span.scope == "fastapi" and str(span.resource.get("service.name", "")).startswith("sglang"):
                return _FASTAPI  # FastAPI's own spans inside an SGLang process say nothing of phases
            return None
        root = request_root(span)
        if root is not None:
            rid = str(span.attributes.get("rid") or "")
            if rid.startswith(HEALTH_CHECK):
                return _NOISE
            if root == "router":
                return Identity(NAME, "edge", _room_key(span), edge="router")
            keys = (*_room_key(span), Key("request_id", rid)) if rid else _room_key(span)
            return Identity(NAME, "worker", keys, role=root)
        if span.name.startswith((SENDER, BOOTSTRAP_ROOM)):
            return Identity(NAME, "stage", _room_key(span))
        return _STAGE

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Envelopes, slices, failures, TTFT claims and causal edges of one request."""
        visits = Visits(mine, tree)
        first_tokens = read_slices(mine, visits, out)
        failures = _failures(mine, visits)
        out.failures.extend(failures)
        for visit in visits.decode_first():
            _read_visit(visit.root, visit.role, visits, first_tokens.get(visit.root.key), failures, out)
        for span in visits.routers:
            out.edges.append(_router_edge(span, visits))
        if not any(tree.identity(span).part == "edge" and tree.identity(span).dialect != NAME for span in tree.spans):
            out.fact("request_id", next((v.root.attributes.get("rid") for v in visits.decode_first()), None))
        roles = {visit.role for visit in visits.all}
        if {"prefill", "decode"} <= roles:
            out.fact("mode", "overlapped")
        elif roles == {"aggregated"}:
            out.fact("mode", "aggregated")
        if visits.is_old_form:
            out.warn(
                "includes_queue",
                "SGLang 0.5.5 has no waiting slices: prefill includes the wait in P's queue, first_token the one in D's",
            )
        _read_causality(mine, visits, out)


def _room_key(span: Span) -> tuple[Key, ...]:
    room = room_of(span)
    return () if room is None else (Key("room", room),)


def _read_visit(
    root: Span, role: Role, visits: Visits, slice_first_token_ns: int | None, failures: list[Failure], out: Reading
) -> None:
    place = visits.place(root)
    attributes = root.attributes
    ttft_ns = visits.ttft_ns(root)
    first_token_ns = slice_first_token_ns if ttft_ns is None else root.start_ns + ttft_ns
    reasons = finish_reasons(attributes.get("gen_ai.response.finish_reasons"))
    mine_failed = [f for f in failures if f.worker == place.worker and f.attempt == place.attempt]
    aborted = "abort" in reasons
    if aborted and not failures:
        failure = Failure("decode" if role == "decode" else "prefill", "SGLang aborted the request", root.end_ns)
        failure.worker, failure.attempt = place.worker, place.attempt
        out.failures.append(failure)
    # The old form never reports a finish: an ended visit without an error is one.
    finished = (bool(reasons) or visits.is_old_form) and not aborted and not mine_failed and root.end_ns > 0
    usage = {
        name: visits.count(root, f"gen_ai.usage.{name}")
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    out.envelopes.append(
        Envelope(
            role=role,
            worker=place.worker,
            start_ns=root.start_ns,
            end_ns=root.end_ns,
            clock=place.clock,
            span_id=root.span_id,
            dialect=NAME,
            trace_id=root.trace_id,
            attempt=place.attempt,
            # P's own stamp is when the tokenizer heard of the hand-over: not causal for D, so it stays a claim.
            first_token_ns=first_token_ns if role != "prefill" else None,
            input_tokens=usage["prompt_tokens"],
            output_tokens=usage["completion_tokens"],
            cached_tokens=usage["cached_tokens"] if role != "decode" else None,
            failed=aborted or bool(mine_failed),
            error=mine_failed[0].text if mine_failed else "",
            finished=finished,
        )
    )
    answers = role != "prefill"
    rid = attributes.get("rid")
    out.facts.setdefault("aliases", []).extend(str(name) for name in (rid, room_of(root)) if name)
    out.fact("model", attributes.get("gen_ai.response.model"))
    out.fact("input_tokens", usage["prompt_tokens"])
    if role != "decode":
        out.fact("cached_tokens", usage["cached_tokens"])
    elif usage["cached_tokens"]:
        out.evidence.append(
            Evidence(
                "decode_cached_tokens",
                usage["cached_tokens"],
                "tokens",
                "D's own count: received by transfer or in D's cache, never a prefix hit",
                root.span_id,
            )
        )
    if answers:
        out.fact("output_tokens", usage["completion_tokens"])
        out.fact("finish_reason", reasons[0] if reasons else None)
        if finished:
            out.fact("answered", True)
        elif root.end_ns and not reasons and not aborted and not failures and not visits.is_old_form:
            # Seen in captures: a visit that ends with its latencies and without usage or a finish reason is the one
            # the tokenizer gave up because the client went (managers/tokenizer_manager.py, abort).
            out.fact("client_cancelled_ns", root.end_ns)
    if ttft_ns is not None:
        if answers:
            claim = TtftClaim("decode_engine", ttft_ns, "from arrival at the answering engine to its first output")
        else:
            claim = TtftClaim("prefill_engine", ttft_ns, "from arrival at P to KV handed over")
        out.ttft_claims.append(claim)


def _failures(mine: Sequence[Span], visits: Visits) -> list[Failure]:
    """One failure per stage, worker and attempt: the earliest, as every rank reports the same one."""
    found: dict[tuple[str, str, int], Failure] = {}
    errors = (span for span in mine if span.status == 2 and is_thread(span))
    for span in sorted(errors, key=lambda s: s.end_ns):
        place = visits.place(span)
        text = _reason(span)
        lower = text.lower()
        failure = Failure("prefill", text, span.end_ns, place.worker, place.attempt)
        if "transfer" in lower or "bootstrap" in lower:
            failure.stage = "handoff"  # the handshake and the transfer both move state P to D
        elif place.role == "decode":
            failure.stage = "decode"
        found.setdefault((failure.stage, place.worker, place.attempt), failure)
    return list(found.values())


def _reason(span: Span) -> str:
    attributes = span.attributes
    for name in ("reason", "message", "err_message"):  # `reason`, or the keys of the finish reason's JSON
        if attributes.get(name):
            return str(attributes[name])
    return span.status_message or f"{span.name} ended with an error and gave no reason"


def _router_edge(span: Span, visits: Visits) -> Edge:
    return Edge("router", span.start_ns, span.end_ns, visits.place(span).clock, span.span_id, span.trace_id, NAME)


def _read_causality(mine: Iterable[Span], visits: Visits, out: Reading) -> None:
    """One certain order between P and D of an attempt: KV is complete on D only after P began its last send.

    The handshake (decode_bootstrap, prefill_bootstrap) bounds nothing: either side may come first.
    """
    sent: dict[tuple[int, str], int] = {}
    landed: dict[tuple[int, str], int] = {}
    for span in mine:
        place = visits.place(span)
        slot = (place.attempt, place.clock)
        if span.name in ("mooncake_worker_send", "prefill_transfer_kv_cache"):
            sent[slot] = max(sent.get(slot, 0), span.start_ns)
        elif span.name == "decode_transferred" and span.end_ns:
            landed[slot] = max(landed.get(slot, 0), span.end_ns)
    for (attempt_p, clock_p), sent_ns in sent.items():
        for (attempt_d, clock_d), landed_ns in landed.items():
            if attempt_p == attempt_d and clock_p != clock_d:
                why = "P began to send the last chunk before the KV was complete on D"
                out.before.append(Before(clock_p, sent_ns, clock_d, landed_ns, why))
