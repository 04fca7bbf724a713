"""A Reader over synthetic requests, naive on purpose: what pages should show can be computed by hand from it.

Owns test data only. A second system (model "small-moe") is slow in D queue on decode-2, some requests fail.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import mean

from pdtrace.reader.contract import Filters, Row

MS = 1_000_000
S = 1_000 * MS
#: stage -> ms of an ordinary request; they sum to 252.
ORDINARY = {
    "ingress": 4, "route": 1, "prefill_queue": 20, "prefill": 150, "relay": 2, "handoff": 15, "decode_queue": 30,
    "first_token": 25, "egress": 1, "unattributed": 4,
}  # fmt: skip
OUTCOMES = (
    "ok", "ok_fallback", "invalid", "rejected", "cancelled", "timed_out", "failed_route", "failed_prefill",
    "failed_handoff", "failed_decode", "failed", "in_flight", "unknown",
)  # fmt: skip


def make_request(number: int, t0_ns: int) -> Row:
    """One row of Reader.request; every 7th is slow on decode-2, every 25th failed, every 60th is in flight."""
    slow = number % 7 == 0
    sections = {stage: ms * MS + number % 1000 for stage, ms in ORDINARY.items()}
    sections["decode_queue"] += 900 * MS if slow else 0
    ordered, at_ns = [], t0_ns
    for stage, length_ns in sections.items():
        ordered.append([stage, at_ns, at_ns + length_ns])
        at_ns += length_ns
    outcome = "in_flight" if number % 60 == 59 else "failed_handoff" if number % 25 == 24 else "ok"
    has_token = outcome == "ok"
    end_ns = None if outcome == "in_flight" else at_ns + 2 * S
    prefill_worker, decode_worker = f"prefill-{number % 2}", "decode-2" if slow else f"decode-{number % 2}"
    activities = [
        {
            "stage": "container" if stage in ("ingress", "relay", "egress") else stage,
            "start_ns": start, "end_ns": end, "worker": decode_worker if stage.startswith("decode") else prefill_worker,
            "role": "decode" if stage in ("decode_queue", "first_token") else "prefill", "attempt": 0, "rank": "",
            "span_id": f"{number:016x}", "dialect": "native", "failed": False, "open": False, "detail": {},
        }
        for stage, start, end in ordered
        if stage != "unattributed"
    ]  # fmt: skip
    early = next(one for one in activities if one["stage"] == "handoff")
    early["start_ns"] -= 40 * MS
    ttft_ns = at_ns - t0_ns
    return {
        "uid": f"uid-{number:05d}", "request_id": f"req-{number:05d}", "trace_ids": [f"{number:032x}"], "aliases": [],
        "model": "small-moe" if number % 3 == 0 else "big-dense", "run": "load-a" if number % 2 else None,
        "outcome": outcome, "outcome_text": "the transfer failed" if outcome == "failed_handoff" else "",
        "mode": "sequential" if number % 4 else "overlapped",
        "window": [t0_ns, at_ns if has_token else None], "t0_ns": t0_ns, "end_ns": end_ns, "last_ns": end_ns or at_ns,
        "error": None, "ttft_ns": ttft_ns if has_token else None, "ttft_basis": "frontend" if has_token else None,
        "ttft_other": {"prefill_engine": 175 * MS}, "prefill_worker": prefill_worker, "decode_worker": decode_worker,
        "input_tokens": 2000 + number, "output_tokens": 100, "cached_tokens": None, "attempts": 1,
        "stitched_by": "parent", "sections": sections if has_token else {},
        "sections_to_end": {} if has_token else sections, "hidden": {"handoff": 40 * MS},
        "saving": {"prefill": 110 * MS, "decode_queue": 30 * MS, "unattributed": None}, "warnings": ["may_hold_transfer"],
        "dialects": ["native"], "activities": activities, "section_list": ordered,
        "ttft_claims": [
            {"name": "prefill_engine", "ttft_ns": 175 * MS, "difference_ns": 175 * MS - ttft_ns if has_token else None,
             "measures": "P's own first token, which no user sees"},
        ],
        "evidence": [{"name": "queue_residual", "value": 3 * MS, "unit": "ns", "text": "reported queue time", "span_id": ""}],
        "warning_list": [{"code": "may_hold_transfer", "text": "D's queue may hold the transfer"}],
        "offsets": [{"clock": "host-d", "reference": "host-p", "low_ns": -2 * MS, "high_ns": None, "applied_ns": 0}],
        "token_times_ns": [], "wasted_ns": 0, "span_count": 9,
    }  # fmt: skip


def percentile(values: list[int], q: float) -> int | None:
    """Nearest rank; the fake need not interpolate."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


class FakeReader:
    """Answers from rows in memory. ``now_ns`` is its clock."""

    def __init__(self, rows: list[Row], now_ns: int) -> None:
        self.rows, self.now_ns, self.asked = rows, now_ns, Counter()

    def _match(self, f: Filters) -> list[Row]:
        return [
            row
            for row in self.rows
            if (f.since_ns is None or row["t0_ns"] >= f.since_ns)
            and (f.until_ns is None or row["t0_ns"] < f.until_ns)
            and all(
                getattr(f, name) is None or row[name] == getattr(f, name)
                for name in ("run", "model", "mode", "outcome", "prefill_worker", "decode_worker")
            )
        ]

    def requests(self, filters, *, order_by="t0", descending=False, offset=0, search=None):
        """Filtered, sorted, unknowns last."""
        self.asked["requests"] += 1
        field = {"t0": "t0_ns", "ttft": "ttft_ns", "last": "last_ns"}.get(order_by, order_by)
        rows = [
            row
            for row in self._match(filters)
            if search is None or any(i.startswith(search) for i in (row["uid"], row["request_id"], *row["trace_ids"]))
        ]
        value = {row["uid"]: row[field] if field in row else row["sections"].get(field) for row in rows}
        known = sorted((row for row in rows if value[row["uid"]] is not None), key=lambda row: value[row["uid"]])
        rows = (known[::-1] if descending else known) + [row for row in rows if value[row["uid"]] is None]
        return rows[offset : None if filters.limit is None else offset + filters.limit]

    def request(self, any_id):
        """By any id."""
        return [row for row in self.rows if any_id in (row["uid"], row["request_id"], *row["trace_ids"])]

    def spans(self, uid):
        """One span a request."""
        return [
            {
                "trace_id": row["trace_ids"][0], "span_id": "00000000000000a1", "parent_id": "", "name": "llm_request",
                "kind": 2, "start_ns": row["t0_ns"], "end_ns": row["end_ns"] or 0, "scope": "test",
                "resource": {"service.name": "engine"}, "attributes": {"k": 1}, "events": [], "links": [], "status": 0,
                "status_message": "", "received_ns": row["t0_ns"],
            }
            for row in self.rows
            if row["uid"] == uid
        ]  # fmt: skip

    def ttft(self, by, filters):
        """Groups by the named columns, by link or by bucket."""
        groups: dict[tuple, list[Row]] = {}
        for row in self._match(filters):
            if row["ttft_ns"] is not None:
                groups.setdefault(tuple(self._value(row, name) for name in by), []).append(row)
        return [
            dict(zip((name.partition(":")[0] for name in by), key, strict=True)) | self._figures(rows)
            for key, rows in sorted(groups.items(), key=lambda item: str(item[0]))
        ]

    def _value(self, row, name):
        if name.startswith("bucket:"):
            size_ns = int(name.partition(":")[2]) * S
            return row["t0_ns"] // size_ns * size_ns
        return f"{row['prefill_worker']} > {row['decode_worker']}" if name == "link" else row[name]

    def _figures(self, rows):
        times = [row["ttft_ns"] for row in rows]
        p99 = percentile(times, 0.99)
        tail = [row for row in rows if row["ttft_ns"] >= p99]
        return {
            "requests": len(rows), "mean_ns": mean(times), "p50_ns": percentile(times, 0.5),
            "p90_ns": percentile(times, 0.9), "p95_ns": percentile(times, 0.95), "p99_ns": p99,
            "sections": _mean([row["sections"] for row in rows]), "p99_requests": len(tail),
            "p99_mean_ns": mean(row["ttft_ns"] for row in tail), "p99_sections": _mean([row["sections"] for row in tail]),
            "hidden": _mean([row["hidden"] for row in rows]),
        }  # fmt: skip

    def ledger(self, filters):
        """Counts by outcome."""
        rows = self._match(filters)
        counts = Counter(row["outcome"] for row in rows)
        return {"offered": len(rows), **{name: counts[name] for name in OUTCOMES}, "wasted_ns": 0,
                "wasted_gpu_seconds": None, "offered_is_lower_bound": True}  # fmt: skip

    def live(self, filters, *, window_s=300, bucket_s=5):
        """The window before ``now_ns``."""
        self.asked["live"] += 1
        since_ns = self.now_ns - window_s * S
        rows = [row for row in self._match(filters) if row["t0_ns"] >= since_ns]
        buckets = []
        for at_ns in range(since_ns // (bucket_s * S) * bucket_s * S, self.now_ns, bucket_s * S):
            mine = [row for row in rows if at_ns <= row["t0_ns"] < at_ns + bucket_s * S]
            told = [row for row in mine if row["ttft_ns"] is not None]
            figures = self._figures(told) if told else dict.fromkeys(("p50_ns", "p95_ns", "p99_ns", "mean_ns"))
            buckets.append(
                {"bucket": at_ns, "offered": len(mine), "first_tokens": len(told),
                 "finished": sum(row["end_ns"] is not None for row in mine), "sections": figures.get("sections") or {},
                 **{name: figures[name] for name in ("p50_ns", "p95_ns", "p99_ns", "mean_ns")}}
            )  # fmt: skip
        told = [row for row in rows if row["ttft_ns"] is not None]
        figures = self._figures(told) if told else dict.fromkeys(("p50_ns", "p95_ns", "p99_ns", "mean_ns"))
        open_rows = [row for row in rows if row["outcome"] == "in_flight"]
        return {
            "now_ns": self.now_ns, "newest_ns": max((row["t0_ns"] for row in rows), default=None), "buckets": buckets,
            "totals": {"offered": len(rows), "finished": len(rows) - len(open_rows), "requests": len(told),
                       "sections": figures.get("sections") or {},
                       **{name: figures[name] for name in ("p50_ns", "p95_ns", "p99_ns", "mean_ns")}},
            "outcomes": {name: sum(row["outcome"] == name for row in rows) for name in OUTCOMES},
            "in_flight": {"count": len(open_rows),
                          "oldest_ns": min((row["t0_ns"] for row in open_rows), default=None),
                          "by_stage": {"decode_queue": len(open_rows)} if open_rows else {}, "rows": open_rows[:20]},
        }  # fmt: skip

    def facets(self, filters):
        """Distinct values."""
        rows = self._match(filters)

        def distinct(name):
            return sorted({row[name] for row in rows if row[name] is not None})

        return {
            "models": distinct("model"), "runs": distinct("run"), "modes": distinct("mode"),
            "outcomes": distinct("outcome"), "prefill_workers": distinct("prefill_worker"),
            "decode_workers": distinct("decode_worker"), "first_ns": min((row["t0_ns"] for row in rows), default=None),
            "last_ns": max((row["t0_ns"] for row in rows), default=None), "requests": len(rows),
        }  # fmt: skip

    def doctor(self):
        """One dialect, one rejection, one thing missing."""
        return {
            "dialects": [{"dialect": "native", "requests": len(self.rows), "spans": 9 * len(self.rows),
                          "blind_spots": ["what the engine does inside a forward pass"]}],
            "warnings": [{"code": "may_hold_transfer", "requests": len(self.rows), "example": "uid-00000"}],
            "clocks": [{"clock": "host-d", "reference": "host-p", "low_ns": -2 * MS, "high_ns": None,
                        "requests": 3, "applied_min_ns": 0, "applied_max_ns": 0}],
            "missing": ["No routing decision was seen: start the router with its tracing flag."],
            "ingest": {"spans": 9 * len(self.rows), "records": 0, "logs": 0, "points": 0, "duplicates": 2,
                       "conflicts": 0, "rejected": 1,
                       "rejections": [{"what": "span", "where": "grpc", "reason": "trace_id is 15 bytes; 16 are right",
                                       "count": 1}]},
            "store": {"path": "pdtrace.duckdb", "bytes": 123_456_789, "requests": len(self.rows), "first_ns": None,
                      "last_ns": None},
        }  # fmt: skip


def _mean(many: list[dict[str, int]]) -> dict[str, float]:
    return {stage: mean(one.get(stage, 0) for one in many) for stage in {s: None for one in many for s in one}}


def traffic(now_ns: int, count: int = 400, span_s: int = 280) -> FakeReader:
    """``count`` requests spread over the last ``span_s`` seconds before ``now_ns``."""
    step_ns = span_s * S // count
    return FakeReader([make_request(i, now_ns - span_s * S + i * step_ns) for i in range(count)], now_ns)


class MovingReader(FakeReader):
    """Traffic that goes on: request n arrives at n * ``step_ns`` of Unix time, the last ``count`` are kept."""

    def __init__(self, count: int = 400, step_ns: int = 700 * MS) -> None:
        self.count, self.step_ns, self.asked, self._made = count, step_ns, Counter(), {}

    @property
    def now_ns(self):
        """The real clock."""
        return time.time_ns()

    @property
    def rows(self):
        """The newest ``count`` requests; a request is made once."""
        last = self.now_ns // self.step_ns
        wanted = range(last - self.count + 1, last + 1)
        self._made = {n: self._made.get(n) or make_request(n, n * self.step_ns) for n in wanted}
        return list(self._made.values())
