"""LMCache 0.5.5 (MP server): what its cache knew of a request's prompt, and how long the look-up took.

Owns LMCache's span and attribute names. Does not charge anything: a look-up runs while the engine holds the request
in its queue (already charged there), and stores and background loads never enter the window.

Source: capture agg_lmcache (scope lmcache_mp.server; 41 sessions). Names marked READ come from LMCache's source only.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdtrace.dialects.contract import SpansOnly, Tree, as_int
from pdtrace.dialects.vllm_request_id import keys_of, request_id_of_session
from pdtrace.model import Evidence, Identity, Reading, Span

NAME = "lmcache"
_SESSION = "request"
_LOOKUP = "mp.lookup_prefetch"
_STORE = "mp.store"  # READ: the CPU path emits neither this nor the next
_RETRIEVE = "mp.retrieve"
_TIMEOUT = "timeout"  # READ


class LmcacheDialect(SpansOnly):
    """LMCache's sessions, joined to an engine's request by the id inside their session id."""

    name = NAME
    blind_spots = (
        "whether a store completed: only its metrics tell (l2_store_completed)",
        "loads into the engine: the CPU path emits no span for them",
        "tokens the engine found in its own device cache",
    )

    def identify(self, span: Span) -> Identity | None:
        """A session's spans carry facts about a request; its other spans follow their parents."""
        if not span.scope.startswith("lmcache"):
            return None
        session_id = span.attributes.get("session_id")
        if isinstance(session_id, str) and session_id:
            return Identity(NAME, "stage", keys_of(request_id_of_session(session_id)))
        return Identity(NAME, "inner")

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Hits and look-up times as evidence; the hit is P's cached tokens where one engine and one session met."""
        sessions = [span for span in mine if span.name == _SESSION]
        for span in mine:
            if span.name == _SESSION:
                _read_hits(span, out)
            elif span.name in (_LOOKUP, _STORE, _RETRIEVE):
                _read_duration(span, out)
            elif span.name == _TIMEOUT:
                out.warn("lmcache_timeout", "LMCache gave up on an operation of this request")
        session_id = mine[0].attributes.get("session_id")
        if isinstance(session_id, str):
            out.fact("request_id", request_id_of_session(session_id))
        # With two engines P and D ask apart, and what D finds may be what P has just stored: no prefix hit.
        engines = [span for span in tree.spans if tree.identity(span).part == "worker"]
        if len(sessions) == 1 and len(engines) <= 1:
            out.fact("cached_tokens", _tokens(sessions[0], "hit_tokens"))
        if sessions and not engines:
            out.fact("ended_ns", max(span.end_ns for span in sessions) or None)  # the engine let go of the request


def _tokens(span: Span, name: str) -> int | None:
    """Token counts are ints on the session and decimal strings on the look-up."""
    tokens = as_int(span.attributes.get(name))
    return tokens if tokens is not None and tokens >= 0 else None


def _read_hits(span: Span, out: Reading) -> None:
    hit, requested = _tokens(span, "hit_tokens"), _tokens(span, "requested_tokens")
    if hit is None:
        return
    tiers = {tier: _tokens(span, f"{tier}_hit_tokens") for tier in ("l1", "l2")}
    text = (
        f"prompt tokens that LMCache held of the {requested} asked for (l1 {tiers['l1']}, l2 {tiers['l2']}); a lower "
        "bound of what was cached: the engine's device cache is not in it"
    )
    out.evidence.append(Evidence("cached_tokens_external", hit, "tokens", text, span.span_id))
    if requested is not None and hit > requested:
        out.warn("impossible_hit", f"LMCache reports {hit} tokens found of {requested} asked for")


def _read_duration(span: Span, out: Reading) -> None:
    if not span.end_ns or span.end_ns < span.start_ns:
        return
    what = {
        _LOOKUP: ("lmcache_lookup", "ran while the request waited in the engine's queue, which is charged already"),
        _STORE: ("lmcache_store", "a store to a cache tier is never on the request's path"),
        _RETRIEVE: ("lmcache_retrieve", "inside the engine's own queue or prefill time, which is charged already"),
    }[span.name]
    out.evidence.append(Evidence(what[0], span.end_ns - span.start_ns, "ns", what[1], span.span_id))
