"""The Reader protocol: every question a command, the API or a page may ask. Local file and HTTP answer alike.

Owns the questions and the shapes of their answers. One conformance suite (tests/reader) runs on both readers.
Rows are plain dicts with the snake_case keys of the command-line contract; times are integer Unix ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Row = dict[str, Any]


class BadQuestion(ValueError):
    """The question itself is wrong (an unknown dimension, order or range); the text says what would be right."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filter bar. None = no restriction. Times bound the request's window start (t0)."""

    since_ns: int | None = None  #: inclusive
    until_ns: int | None = None  #: exclusive
    run: str | None = None
    model: str | None = None
    mode: str | None = None
    outcome: str | None = None
    prefill_worker: str | None = None
    decode_worker: str | None = None
    limit: int | None = None


class Reader(Protocol):
    """Read access to requests and what is known of the service."""

    def requests(
        self,
        filters: Filters,
        *,
        order_by: str = "t0",
        descending: bool = False,
        offset: int = 0,
        search: str | None = None,
    ) -> list[Row]:
        """One row per request, keys of `pdtrace requests --json` plus uid, t0_ns, end_ns, last_ns, error.

        order_by: t0, ttft, last, input_tokens, output_tokens, or any stage name (charged ns); unknowns sort last.
        search: exact request id, alias, trace id or uid, or a prefix of one (4 characters at least).
        """

    def request(self, any_id: str) -> list[Row]:
        """Every request with this uid, request id, alias or trace id, in full ([] if none).

        The row of ``requests`` plus: aliases, dialects, sources, activities (stage, start_ns, end_ns, worker, role,
        attempt, rank, span_id, dialect, failed, open, detail), sections as an ordered list of [stage, start_ns, end_ns]
        under ``section_list`` (``section_list_to_end`` without a first token), ttft_claims (name, ttft_ns,
        difference_ns, measures), evidence (name, value, unit, text, span_id), warning_list (code, text), offsets
        (clock, reference, low_ns, high_ns, applied_ns), token_times_ns, wasted_ns, wasted_gpu_seconds, span_count.
        """

    def details(self, uids: Sequence[str]) -> list[Row]:
        """The requests with these uids in full, as ``request`` gives them, by window start; unknown uids are left out.

        At most 1,000 uids at a time; for exports.
        """

    def spans(self, uid: str) -> list[Row]:
        """Raw spans of one request: trace_id, span_id, parent_id, name, kind, start_ns, end_ns, scope, resource,
        attributes, events, links, status, status_message, received_ns.

        These are all spans of the traces it was made of: of a trace with several requests, those of the others too.
        Bytes and non-finite doubles are tagged objects: {"$bytes": base64}, {"$double": "NaN"}.
        """

    def ttft(self, by: Sequence[str], filters: Filters) -> list[Row]:
        """Per group: the ``by`` values, requests (with a TTFT), mean_ns, p50_ns, p90_ns, p95_ns, p99_ns, sections
        (stage -> mean ns, sums to mean_ns), p99_requests, p99_mean_ns, p99_sections (mean of the requests at or
        above the p99 TTFT), hidden (stage -> mean ns).

        by: prefill_worker, decode_worker, link, model, mode, run, outcome, minute, or bucket:<seconds> (the last two
        give the bucket's start as Unix ns under ``minute`` / ``bucket``). [] = one group over all.
        """

    def ledger(self, filters: Filters) -> Row:
        """offered, every outcome of the ledger by name (all of them, zeros too), summing to offered; wasted_ns,
        wasted_gpu_seconds (null if no worker said its GPUs), offered_is_lower_bound (true without a client file)."""

    def live(self, filters: Filters, *, window_s: int = 300, bucket_s: int = 5) -> Row:
        """now_ns, newest_ns, buckets ([{bucket, offered, first_tokens, finished, p50_ns, p95_ns, p99_ns, mean_ns,
        sections}]), totals (offered, finished, requests, mean_ns, p50_ns, p95_ns, p99_ns, sections), outcomes (name ->
        count), in_flight (whatever the time range: count, oldest_ns (its arrival, Unix ns), by_stage (stage -> count;
        after_first_token for those that have theirs), rows: the 20 oldest request rows)."""

    def facets(self, filters: Filters) -> Row:
        """Values the filter bar can offer: models, runs, modes, outcomes, prefill_workers, decode_workers, first_ns,
        last_ns, requests."""

    def doctor(self) -> Row:
        """dialects ([{dialect, requests, spans, blind_spots}]), warnings ([{code, requests, example}]), clocks
        ([{clock, reference, low_ns, high_ns, requests, applied_min_ns, applied_max_ns}]), missing ([text]: what is not
        seen and which flag on which engine would show it), ingest (spans, records, logs, points, duplicates,
        conflicts, rejected, rejections [{what, where, reason, count}]), store (path, bytes, requests, first_ns,
        last_ns)."""
