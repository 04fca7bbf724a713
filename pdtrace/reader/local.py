"""The Reader over a Store in this process.

Owns which named query answers which question. Shapes are in rows.py, cohorts.py and health.py; SQL in pdtrace/queries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

from pdtrace.outcomes import OUTCOMES
from pdtrace.reader.cohorts import cohort_parameters, cohort_row
from pdtrace.reader.contract import BadQuestion, Filters, Row
from pdtrace.reader.health import blind_spots, missing_sentences
from pdtrace.reader.rows import full_request_row, request_row, span_row, stage_values
from pdtrace.stages import STAGES
from pdtrace.store.contract import Store

ORDERS: Final = ("t0", "ttft", "last", "input_tokens", "output_tokens", *STAGES)
MAX_BUCKETS: Final = 10_000
MAX_DETAILS: Final = 1_000
_OLDEST_SHOWN: Final = 20
_REJECTIONS_SHOWN: Final = 200
_NS_PER_S: Final = 10**9


class LocalReader:
    """Answers every question of the contract from one store. Safe to share between threads."""

    def __init__(self, store: Store, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._store = store
        self._now_ns = now_ns

    def requests(
        self,
        filters: Filters,
        *,
        order_by: str = "t0",
        descending: bool = False,
        offset: int = 0,
        search: str | None = None,
    ) -> list[Row]:
        """One row per request; see the contract.

        Raises:
            BadQuestion: an unknown order, or a negative offset or limit.
        """
        if order_by not in ORDERS:
            raise BadQuestion(f"cannot order by {order_by!r}; it can be {', '.join(ORDERS)}")
        if offset < 0 or (filters.limit is not None and filters.limit < 0):
            raise BadQuestion("offset and limit cannot be negative; use 0 or more")
        page = {"order_by": order_by, "descending": descending, "offset": offset, "limit": filters.limit}
        rows = self._rows("requests", **_where(filters), **page, search=search or None)
        return [request_row(row) for row in rows]

    def request(self, any_id: str) -> list[Row]:
        """Every request that bears this id, in full."""
        return [full_request_row(row) for row in self._rows("request", id=any_id)]

    def details(self, uids: Sequence[str]) -> list[Row]:
        """The requests with these uids, in full.

        Raises:
            BadQuestion: more than MAX_DETAILS uids.
        """
        if len(uids) > MAX_DETAILS:
            raise BadQuestion(f"{len(uids)} uids are too many at a time; ask for at most {MAX_DETAILS}")
        return [full_request_row(row) for row in self._rows("details", uids=list(uids))]

    def spans(self, uid: str) -> list[Row]:
        """Raw spans of the traces a request was made of, by start."""
        sources = [row["source"] for row in self._rows("sources_of_request", uid=uid)]
        spans, _ = self._store.load(sources)
        return [span_row(span) for span in spans]

    def ttft(self, by: Sequence[str], filters: Filters) -> list[Row]:
        """TTFT and its mean decomposition per group; see the contract."""
        parameters, columns = cohort_parameters(by)
        rows = self._rows("ttft", **_where(filters), **parameters)
        return [cohort_row(row, columns) for row in rows[: filters.limit]]

    def ledger(self, filters: Filters) -> Row:
        """Every outcome, summing to what was offered."""
        rows = self._rows("ledger", **_where(filters))
        counts = _by_outcome(rows)
        gpu_seconds = [row["wasted_gpu_seconds"] for row in rows if row["wasted_gpu_seconds"] is not None]
        return {
            "offered": sum(counts.values()),
            **counts,
            "wasted_ns": sum(row["wasted_ns"] for row in rows),
            "wasted_gpu_seconds": sum(gpu_seconds) if gpu_seconds else None,
            "offered_is_lower_bound": not any(row["client_seen"] for row in rows),
        }

    def live(self, filters: Filters, *, window_s: int = 300, bucket_s: int = 5) -> Row:
        """The last ``window_s`` seconds (before ``until_ns`` if given; from ``since_ns`` if given) in buckets.

        Raises:
            BadQuestion: lengths that are not positive, or more than MAX_BUCKETS buckets.
        """
        if window_s <= 0 or bucket_s <= 0:
            raise BadQuestion("window_s and bucket_s are seconds; use 1 or more")
        bucket_ns = bucket_s * _NS_PER_S
        now_ns = self._now_ns()
        to_ns = now_ns if filters.until_ns is None else filters.until_ns
        from_ns = to_ns - window_s * _NS_PER_S if filters.since_ns is None else filters.since_ns
        from_ns -= from_ns % bucket_ns
        if to_ns - from_ns > MAX_BUCKETS * bucket_ns:
            raise BadQuestion(
                f"that makes more than {MAX_BUCKETS} buckets; choose a longer bucket_s or a shorter window"
            )
        where = _where(filters)
        window = where | {"since_ns": from_ns, "until_ns": to_ns}
        within = {key: value for key, value in where.items() if key not in ("since_ns", "until_ns")}
        rows = self._rows("live_window", **within, from_ns=from_ns, to_ns=to_ns, bucket_ns=bucket_ns)
        by_bucket = {row["bucket"]: row for row in rows}
        totals = _live_row(by_bucket.get(None))
        totals["requests"] = totals.pop("first_tokens")
        return {
            "now_ns": now_ns,
            "newest_ns": self._rows("newest")[0]["newest_ns"],
            "buckets": [{"bucket": at, **_live_row(by_bucket.get(at))} for at in range(from_ns, to_ns, bucket_ns)],
            "totals": totals,
            "outcomes": _by_outcome(self._rows("ledger", **window)),
            "in_flight": self._in_flight(filters),
        }

    def facets(self, filters: Filters) -> Row:
        """Values the filter bar can offer."""
        return self._rows("facets", **_where(filters))[0]

    def doctor(self) -> Row:
        """What was seen, what is missing, and whether to believe it."""
        spots = blind_spots()
        dialects = self._rows("doctor_dialects")
        for row in dialects:
            row["blind_spots"] = list(spots.get(row["dialect"], ()))
        warnings = self._rows("doctor_warnings")
        rejections = self._rows("doctor_rejections", limit=_REJECTIONS_SHOWN)
        ingest = self._rows("doctor_ingest")[0]
        ingest["rejections"] = [
            {"what": r["what"], "where": r["place"], "reason": r["reason"], "count": r["count"]} for r in rejections
        ]
        store = self._rows("doctor_store")[0]
        return {
            "dialects": dialects,
            "warnings": warnings,
            "clocks": self._rows("doctor_clocks"),
            "missing": missing_sentences(dialects, warnings),
            "ingest": ingest,
            "store": {"path": self._store.path, "bytes": self._store.bytes_on_disk(), **store},
        }

    def _in_flight(self, filters: Filters) -> Row:
        where = _where(filters) | {"since_ns": None, "until_ns": None}
        stages = self._rows("in_flight", **where)
        in_flight = Filters(
            run=filters.run,
            model=filters.model,
            mode=filters.mode,
            outcome="in_flight",
            prefill_worker=filters.prefill_worker,
            decode_worker=filters.decode_worker,
            limit=_OLDEST_SHOWN,
        )
        other = filters.outcome not in (None, "in_flight")
        return {
            "count": sum(row["requests"] for row in stages),
            "oldest_ns": min((row["oldest_ns"] for row in stages), default=None),
            "by_stage": {row["stage"]: row["requests"] for row in stages},
            "rows": [] if other else self.requests(in_flight),
        }

    def _rows(self, query: str, **parameters: Any) -> list[Row]:
        rows: list[Row] = self._store.query(query, parameters).to_pylist()
        return rows


def _where(filters: Filters) -> dict[str, Any]:
    where = asdict(filters)
    del where["limit"]
    return where


def _by_outcome(rows: Sequence[Row]) -> dict[str, int]:
    found = {row["outcome"]: row["requests"] for row in rows}
    return {name: found.pop(name, 0) for name in OUTCOMES} | found


_NOTHING: Final[Row] = {f"section_{stage}_ns": None for stage in STAGES} | dict.fromkeys(
    ("p50_ns", "p95_ns", "p99_ns", "mean_ns")
)


def _live_row(row: Row | None) -> Row:
    row = row or {**_NOTHING, "offered": 0, "first_tokens": 0, "finished": 0}
    counts = ("offered", "first_tokens", "finished")
    return {key: row[key] for key in (*counts, "p50_ns", "p95_ns", "p99_ns", "mean_ns")} | {
        "sections": stage_values(row, "section")
    }
