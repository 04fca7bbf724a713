"""What every Reader must answer. Subclass ReaderConformance and give a ``reader`` fixture over a store that
tests.reader.known.fill has filled. The dialects dynamo, vllm and generic must be known to the reader's process.
"""

from __future__ import annotations

import base64
import json

import pytest

from pdtrace.outcomes import OUTCOMES
from pdtrace.reader.contract import Filters, Reader, Row
from tests.reader.requests import MS, T0, S, trace_id_of

ANY = Filters()
STACK = Filters(run="stack")
MIXED = Filters(run="mixed")

#: Keys of `pdtrace requests --json`, in order (design, "The command line"), for a request with a first token.
CLI_KEYS = [
    "request_id", "trace_ids", "model", "outcome", "mode", "window", "ttft_ns", "ttft_basis", "ttft_other",
    "prefill_worker", "decode_worker", "input_tokens", "output_tokens", "cached_tokens", "attempts", "stitched_by",
    "sections", "hidden", "saving", "warnings",
]  # fmt: skip


def uids(rows: list[Row]) -> list[str]:
    return [row["uid"] for row in rows]


def ms(values: dict[str, float]) -> dict[str, float]:
    return {stage: round(value / MS, 6) for stage, value in values.items()}


class ReaderConformance:
    """The contract of pdtrace.reader.contract over the known set."""

    # ------------------------------------------------------------------------------------------------- requests

    def test_a_request_row_says_what_the_command_line_promises(self, reader: Reader) -> None:
        row = reader.requests(MIXED)[0]
        assert list(row)[: len(CLI_KEYS)] == CLI_KEYS
        assert {key: row[key] for key in CLI_KEYS} == {
            "request_id": "req-ok",
            "trace_ids": [trace_id_of("ok")],
            "model": "llama",
            "outcome": "ok",
            "mode": "sequential",
            "window": [T0, T0 + 120 * MS],
            "ttft_ns": 120 * MS,
            "ttft_basis": "frontend",
            "ttft_other": {"router": 118 * MS, "prefill_engine": 90 * MS},
            "prefill_worker": "p0",
            "decode_worker": "d0",
            "input_tokens": 1000,
            "output_tokens": 20,
            "cached_tokens": 128,
            "attempts": 1,
            "stitched_by": "parent",
            "sections": {"prefill": 95 * MS, "handoff": 10 * MS, "first_token": 10 * MS, "ingress": 5 * MS},
            "hidden": {"handoff": 40 * MS},
            "saving": {"prefill": 55 * MS, "handoff": 10 * MS, "first_token": 10 * MS, "ingress": 5 * MS},
            "warnings": ["clock_shifted"],
        }
        assert (row["uid"], row["t0_ns"], row["end_ns"], row["last_ns"], row["error"]) == (
            "ok", T0, T0 + 2 * S, T0 + 2 * S, None,
        )  # fmt: skip

    def test_a_request_without_a_first_token_has_no_ttft_and_says_where_its_time_went(self, reader: Reader) -> None:
        (row,) = reader.requests(Filters(outcome="rejected"))
        assert row["ttft_ns"] is None
        assert row["window"] == [T0 + 13 * S, None]
        assert row["sections"] == {}
        assert row["sections_to_end"] == {"ingress": 150 * MS}
        assert row["prefill_worker"] is None
        assert row["error"] == "HTTP 429: the queue is full"
        assert "sections_to_end" not in reader.requests(MIXED)[0]

    def test_a_saving_that_cannot_be_told_is_null_and_not_absent(self, reader: Reader) -> None:
        (row,) = reader.requests(Filters(mode="aggregated"))
        assert row["saving"] == {"prefill_opaque": None}

    def test_sections_sum_to_ttft_exactly(self, reader: Reader) -> None:
        rows = [row for row in reader.requests(ANY) if row["ttft_ns"] is not None]
        assert len(rows) == 104
        assert all(sum(row["sections"].values()) == row["ttft_ns"] for row in rows)

    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            (Filters(run="mixed", model="qwen"), ["slow"]),
            (Filters(run="mixed", prefill_worker="p0"), ["ok", "lost", "wait", "talk"]),
            (Filters(run="mixed", decode_worker="d0", outcome="ok"), ["ok"]),
            (Filters(run="mixed", since_ns=T0 + 10 * S, until_ns=T0 + 13 * S), ["slow", "alone"]),
            (Filters(run="mixed", limit=2), ["ok", "slow"]),
            (Filters(run="mixed", limit=0), []),
            (Filters(run="no such run"), []),
        ],
    )
    def test_filters(self, reader: Reader, filters: Filters, expected: list[str]) -> None:
        assert uids(reader.requests(filters)) == expected

    @pytest.mark.parametrize(
        ("order_by", "descending", "expected"),
        [
            ("t0", False, ["ok", "slow", "alone", "full", "lost", "wait", "talk"]),
            ("t0", True, ["talk", "wait", "lost", "full", "alone", "slow", "ok"]),
            ("ttft", False, ["talk", "alone", "ok", "slow", "full", "lost", "wait"]),
            ("ttft", True, ["slow", "ok", "alone", "talk", "full", "lost", "wait"]),
            ("prefill", True, ["slow", "ok", "talk", "alone", "full", "lost", "wait"]),
            ("input_tokens", True, ["ok", "alone", "full", "lost", "slow", "talk", "wait"]),
        ],
    )
    def test_orders_put_unknowns_last(
        self, reader: Reader, order_by: str, descending: bool, expected: list[str]
    ) -> None:
        assert uids(reader.requests(MIXED, order_by=order_by, descending=descending)) == expected

    def test_pages_do_not_overlap(self, reader: Reader) -> None:
        page = Filters(run="stack", limit=40)
        pages = [reader.requests(page, order_by="ttft", offset=offset) for offset in (0, 40, 80)]
        assert [len(rows) for rows in pages] == [40, 40, 20]
        assert len({uid for rows in pages for uid in uids(rows)}) == 100

    @pytest.mark.parametrize(
        ("search", "expected"),
        [
            ("req-ok", ["ok"]),
            ("chatcmpl-7f3a", ["ok"]),
            ("chat", ["ok"]),
            ("cha", []),
            ("ok", ["ok"]),
            (trace_id_of("slow"), ["slow"]),
            ("req-", ["ok", "slow", "alone", "full", "lost", "wait", "talk"]),
            ("' OR 1=1 --", []),
        ],
    )
    def test_search(self, reader: Reader, search: str, expected: list[str]) -> None:
        assert uids(reader.requests(MIXED, search=search)) == expected

    # ---------------------------------------------------------------------------------------------- one request

    @pytest.mark.parametrize("any_id", ["ok", "req-ok", "chatcmpl-7f3a", trace_id_of("ok")])
    def test_one_request_in_full_by_any_id(self, reader: Reader, any_id: str) -> None:
        (row,) = reader.request(any_id)
        assert list(row)[: len(CLI_KEYS)] == CLI_KEYS
        assert row["aliases"] == ["chatcmpl-7f3a"]
        assert row["dialects"] == ["dynamo", "vllm"]
        assert row["section_list"] == [
            ["ingress", T0, T0 + 5 * MS],
            ["prefill", T0 + 5 * MS, T0 + 100 * MS],
            ["handoff", T0 + 100 * MS, T0 + 110 * MS],
            ["first_token", T0 + 110 * MS, T0 + 120 * MS],
        ]
        activity = row["activities"][1]
        assert (activity["stage"], activity["start_ns"], activity["worker"]) == ("prefill", T0 + 5 * MS, "p0")
        assert (activity["open"], activity["failed"], activity["detail"]) == (False, False, {})
        assert row["ttft_claims"][1] == {
            "name": "prefill_engine",
            "ttft_ns": 90 * MS,
            "difference_ns": -30 * MS,
            "measures": "P's own first token",
        }
        assert row["evidence"] == [
            {
                "name": "queue_residual",
                "value": 1.5,
                "unit": "ms",
                "text": "reported queue minus what fits",
                "span_id": "00000000000000a2",
            }
        ]
        assert [w["code"] for w in row["warning_list"]] == ["clock_shifted", "clock_shifted"]
        assert row["offsets"] == [
            {"clock": "host:b", "reference": "host:a", "low_ns": 2 * MS, "high_ns": 5 * MS, "applied_ns": 3 * MS}
        ]
        assert row["token_times_ns"] == [T0 + 120 * MS, T0 + 150 * MS]
        assert row["span_count"] == 3

    def test_one_request_without_a_first_token(self, reader: Reader) -> None:
        (row,) = reader.request("wait")
        assert row["section_list"] == []
        assert [stage for stage, *_ in row["section_list_to_end"]] == ["ingress", "prefill_queue"]

    def test_an_unknown_id_is_no_request(self, reader: Reader) -> None:
        assert reader.request("nobody") == []
        assert reader.spans("nobody") == []

    def test_many_in_full_are_what_one_in_full_is(self, reader: Reader) -> None:
        rows = reader.details(["wait", "nobody", "ok"])
        assert rows == [*reader.request("ok"), *reader.request("wait")]
        assert reader.details([]) == []

    def test_raw_spans_come_by_start_and_keep_their_types(self, reader: Reader) -> None:
        outer, inner = reader.spans("ok")
        assert (outer["name"], inner["name"]) == ("POST /v1/chat/completions", "prefill")
        assert inner["parent_id"] == outer["span_id"] == "00000000000000a1"
        assert outer["trace_id"] == trace_id_of("ok")
        assert (outer["kind"], outer["start_ns"], outer["end_ns"]) == (2, T0, T0 + 2 * S)
        assert outer["resource"] == {"service.name": "frontend", "host.name": "a"}
        assert outer["attributes"] == {
            "n": 1,
            "ratio": 1.0,
            "raw": {"$bytes": base64.b64encode(b"\x00").decode()},
            "nan": {"$double": "NaN"},
        }
        assert isinstance(outer["attributes"]["ratio"], float)
        assert outer["events"] == [{"time_ns": T0 + 120 * MS, "name": "first_token", "attributes": {"index": 0}}]
        assert outer["links"] == [{"trace_id": trace_id_of("slow"), "span_id": "00000000000000b1"}]
        assert (outer["status"], outer["status_message"], outer["received_ns"]) == (1, "fine", T0 + 3 * S)
        json.dumps(outer, allow_nan=False)

    # ----------------------------------------------------------------------------------------------------- ttft

    def test_case_p99_stack(self, reader: Reader) -> None:
        """The p99 decomposition is a mean of real requests: 550 + 460 = 1010 ms, the mean TTFT of those requests."""
        (row,) = reader.ttft([], STACK)
        assert row["requests"] == 100
        assert row["p99_ns"] == 1010 * MS
        assert row["p99_requests"] == 2
        assert ms(row["p99_sections"]) == {"prefill": 550, "handoff": 460}
        assert row["p99_mean_ns"] == 1010 * MS
        assert ms(row["sections"]) == {"prefill": 109, "handoff": 19}
        assert row["mean_ns"] == 128 * MS
        assert row["p50_ns"] == row["p90_ns"] == row["p95_ns"] == 110 * MS

    def test_requests_without_a_first_token_never_enter_ttft(self, reader: Reader) -> None:
        (row,) = reader.ttft([], MIXED)
        assert row["requests"] == 4
        assert row["mean_ns"] == (120 + 400 + 60 + 50) / 4 * MS
        assert row["p50_ns"] == 90 * MS
        assert row["p99_ns"] == pytest.approx((120 + 280 * 0.97) * MS)
        assert sum(row["sections"].values()) == pytest.approx(row["mean_ns"], rel=1e-12)
        assert ms(row["hidden"]) == {"handoff": 10}
        assert reader.ttft([], Filters(outcome="rejected")) == []

    def test_ttft_by_link_keeps_the_unknown_link(self, reader: Reader) -> None:
        rows = reader.ttft(["link"], MIXED)
        assert {row["link"]: (row["requests"], row["mean_ns"] / MS) for row in rows} == {
            "p0>d0": (2, 85),
            "p1>d0": (1, 400),
            None: (1, 60),
        }

    def test_ttft_by_several_dimensions(self, reader: Reader) -> None:
        rows = reader.ttft(["model", "prefill_worker", "minute"], MIXED)
        minute = T0 - T0 % (60 * S)
        assert {(r["model"], r["prefill_worker"], r["minute"]): r["requests"] for r in rows} == {
            ("llama", "p0", minute): 1,
            ("llama", "p0", minute + 60 * S): 1,
            ("llama", "a0", minute): 1,
            ("qwen", "p1", minute): 1,
        }
        for row in rows:
            assert sum(row["sections"].values()) == pytest.approx(row["mean_ns"], rel=1e-12)
            assert sum(row["p99_sections"].values()) == pytest.approx(row["p99_mean_ns"], rel=1e-12)

    @pytest.mark.parametrize("dimension", ["decode_worker", "mode", "run", "outcome"])
    def test_groups_of_any_dimension_add_up(self, reader: Reader, dimension: str) -> None:
        (total,) = reader.ttft([], ANY)
        groups = reader.ttft([dimension], ANY)
        assert len({row[dimension] for row in groups}) == len(groups) > 1
        assert sum(row["requests"] for row in groups) == total["requests"] == 104
        weighted = sum(row["requests"] * row["mean_ns"] for row in groups) / total["requests"]
        assert weighted == pytest.approx(total["mean_ns"], rel=1e-12)

    def test_ttft_by_buckets_of_seconds(self, reader: Reader) -> None:
        rows = reader.ttft(["bucket:10"], MIXED)
        assert [(row["bucket"], row["requests"]) for row in rows] == [(T0, 1), (T0 + 10 * S, 2), (T0 + 80 * S, 1)]

    # --------------------------------------------------------------------------------------- ledger, live, facets

    def test_the_ledger_adds_up_to_offered(self, reader: Reader) -> None:
        ledger = reader.ledger(MIXED)
        found = {name: ledger[name] for name in OUTCOMES if ledger[name]}
        assert set(OUTCOMES) <= set(ledger)  # zeros too
        assert found == {"ok": 2, "ok_fallback": 1, "rejected": 1, "failed_prefill": 1, "in_flight": 2}
        assert sum(ledger[name] for name in OUTCOMES) == ledger["offered"] == 7
        assert (ledger["wasted_ns"], ledger["wasted_gpu_seconds"]) == (3 * S, 4.0)
        assert ledger["offered_is_lower_bound"] is True

    def test_unknown_gpu_seconds_are_null(self, reader: Reader) -> None:
        assert reader.ledger(STACK)["wasted_gpu_seconds"] is None
        empty = reader.ledger(Filters(run="no such run"))
        assert (empty["offered"], empty["ok"], empty["wasted_ns"]) == (0, 0, 0)

    def test_live_counts_each_event_in_the_bucket_it_fell_in(self, reader: Reader) -> None:
        live = reader.live(Filters(run="mixed", since_ns=T0, until_ns=T0 + 20 * S), bucket_s=5)
        assert [b["bucket"] for b in live["buckets"]] == [T0 + n * 5 * S for n in range(4)]
        counts = [(b["offered"], b["first_tokens"], b["finished"]) for b in live["buckets"]]
        assert counts == [(1, 1, 1), (0, 0, 0), (4, 2, 3), (0, 0, 1)]
        third = live["buckets"][2]
        assert third["mean_ns"] == third["p50_ns"] == 230 * MS
        assert ms(third["sections"]) == {"prefill": 50, "prefill_queue": 150, "prefill_opaque": 30}
        assert live["buckets"][1]["p99_ns"] is None
        assert live["buckets"][1]["sections"] == {}
        totals = live["totals"]
        assert (totals["offered"], totals["requests"], totals["finished"]) == (5, 3, 5)
        assert sum(totals["sections"].values()) == pytest.approx(totals["mean_ns"], rel=1e-12)
        assert sum(live["outcomes"].values()) == 5
        assert live["outcomes"]["rejected"] == 1
        assert set(OUTCOMES) <= set(live["outcomes"])

    def test_live_shows_what_is_in_flight_whatever_the_window(self, reader: Reader) -> None:
        live = reader.live(Filters(since_ns=T0, until_ns=T0 + 5 * S))
        assert live["in_flight"]["count"] == 2
        assert live["in_flight"]["oldest_ns"] == T0 + 70 * S
        assert live["in_flight"]["by_stage"] == {"prefill_queue": 1, "after_first_token": 1}
        assert uids(live["in_flight"]["rows"]) == ["wait", "talk"]
        assert live["newest_ns"] == T0 + 302 * S
        assert live["now_ns"] > T0

    def test_live_window_ends_now_unless_said(self, reader: Reader) -> None:
        live = reader.live(ANY, window_s=60, bucket_s=10)
        assert 6 <= len(live["buckets"]) <= 7
        assert live["buckets"][-1]["bucket"] <= live["now_ns"] < live["buckets"][-1]["bucket"] + 10 * S

    def test_facets_offer_what_occurs(self, reader: Reader) -> None:
        assert reader.facets(MIXED) == {
            "models": ["llama", "qwen"],
            "runs": ["mixed"],
            "modes": ["aggregated", "sequential"],
            "outcomes": ["failed_prefill", "in_flight", "ok", "ok_fallback", "rejected"],
            "prefill_workers": ["a0", "p0", "p1"],
            "decode_workers": ["d0"],
            "first_ns": T0,
            "last_ns": T0 + 80 * S + 50 * MS,
            "requests": 7,
        }
        nothing = reader.facets(Filters(run="no such run"))
        assert (nothing["models"], nothing["first_ns"], nothing["requests"]) == ([], None, 0)

    # --------------------------------------------------------------------------------------------------- doctor

    def test_doctor_says_what_was_seen_and_what_is_missing(self, reader: Reader) -> None:
        doctor = reader.doctor()
        dialects = {d["dialect"]: d for d in doctor["dialects"]}
        assert {name: (d["requests"], d["spans"]) for name, d in dialects.items()} == {
            "dynamo": (1, 3),
            "generic": (106, 318),
            "vllm": (1, 3),
        }
        for name, dialect in dialects.items():
            for spot in dialect["blind_spots"]:
                assert f"{name}: {spot}" in doctor["missing"]
        assert doctor["warnings"] == [
            {"code": "no_edge_span", "requests": 2, "example": "no front end or router span was seen either"},
            {"code": "clock_shifted", "requests": 1, "example": doctor["warnings"][1]["example"]},
        ]
        assert any("no_edge_span on 2 requests" in sentence for sentence in doctor["missing"])
        assert doctor["clocks"] == [
            {
                "clock": "host:b",
                "reference": "host:a",
                "low_ns": 2 * MS,
                "high_ns": 4 * MS,
                "requests": 2,
                "applied_min_ns": 0,
                "applied_max_ns": 3 * MS,
            }
        ]

    def test_doctor_counts_what_came_in(self, reader: Reader) -> None:
        doctor = reader.doctor()
        ingest = doctor["ingest"]
        assert (ingest["spans"], ingest["records"], ingest["logs"], ingest["points"]) == (2, 0, 1, 1)
        assert (ingest["duplicates"], ingest["conflicts"], ingest["rejected"]) == (4, 0, 6)
        assert ingest["rejections"] == [
            {"what": "span", "where": "grpc", "reason": "no trace id", "count": 4},
            {"what": "line", "where": "f.jsonl:3", "reason": "not JSON", "count": 2},
        ]
        store = doctor["store"]
        assert store["requests"] == 107
        assert (store["first_ns"], store["last_ns"]) == (T0, T0 + 302 * S)
        assert isinstance(store["path"], str)
