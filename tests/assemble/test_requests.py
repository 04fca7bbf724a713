"""Drawn requests through assembly: windows, joins, attempts, outcomes, ranks, clocks. Values from the cases."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pdtrace.assemble import Limits, derive
from pdtrace.model import Request, Span
from tests.drawing import START_NS, ms, spans, totals_ms


def one(drawing: str, *, limits: Limits | None = None, now_ms: float | None = None, **root: object) -> Request:
    """The single request of a drawing."""
    now_ns = None if now_ms is None else START_NS + ms(now_ms)
    (request,) = derive(spans(drawing, **root), limits=limits, now_ns=now_ns)
    return request


def codes(request: Request) -> set[str]:
    return {warning.code for warning in request.warnings}


def at(value: float) -> int:
    return START_NS + ms(value)


def test_layer_wise_overlap_is_exposed_and_hidden() -> None:
    """Case cp-layerwise-overlap."""
    request = one(
        """
        req         0 - 400
          prefill   5 - 100   @P0
          handoff  60 - 110   @P0>D0
          first_token 110 - 120 @D0
          decode  120 - 390   @D0
        """
    )
    assert request.ttft_ns == ms(120)
    assert request.ttft_basis == "frontend"
    assert totals_ms(request.section_totals()) == {"ingress": 5, "prefill": 95, "handoff": 10, "first_token": 10}
    assert totals_ms(request.hidden_ns) == {"handoff": 40}
    assert request.saving_ns["prefill"] == ms(55)
    assert (request.outcome, request.prefill_worker, request.decode_worker) == ("ok", "P0", "D0")


def test_router_that_waits_for_the_answer_of_p_is_egress() -> None:
    """Case ttft-router-waits-for-P-response: the token exists at 310, the user sees it at 510."""
    request = one(
        """
        req 0 - 600
          prefill 0 - 300 @P0
          handoff 294 - 300 @P0>D0
          first_token 300 - 310 @D0
        """,
        **{"pdtrace.first_token_ns": at(510)},
    )
    assert totals_ms(request.section_totals()) == {"prefill": 300, "first_token": 10, "egress": 200}
    assert totals_ms(request.hidden_ns) == {"handoff": 6}


@pytest.mark.parametrize("name", ["opaque worker", "prefill on decode"])
def test_what_the_worker_tells_is_what_is_charged(name: str) -> None:
    drawings = {
        # Case ttft-opaque-worker: never called prefill.
        "opaque worker": (
            "req 0 - 960\n prefill_opaque 5 - 955 @P0",
            960,
            {"ingress": 5, "prefill_opaque": 950, "egress": 5},
            "unknown",
        ),
        # Case pd-no-prefill-ready: handoff and P queue are absent, not 0.
        "prefill on decode": (
            "req 0 - 5\n decode_queue 5 - 20 @D0\n prefill 20 - 320 @D0\n first_token 320 - 330 @D0",
            330,
            {"ingress": 5, "decode_queue": 15, "prefill": 300, "first_token": 10},
            "prefill_on_decode",
        ),
    }
    drawing, first_token_ms, expected, mode = drawings[name]
    request = one(drawing, **{"pdtrace.first_token_ns": at(first_token_ms)})
    assert totals_ms(request.section_totals()) == expected
    assert request.mode == mode


def test_ranks_of_one_transfer_are_one_transfer() -> None:
    """Case kv-tp-ranks-pooled: 12 ms, not 41."""
    request = one(
        """
        req 90 - 200
          prefill 95 - 100 @P0
          handoff 100 - 110 @P0>D0 rank=0
          handoff 100 - 112 @P0>D0 rank=1
          handoff 101 - 111 @P0>D0 rank=2
          handoff 100 - 109 @P0>D0 rank=3
          first_token 112 - 120 @D0
        """
    )
    transfers = [a for a in request.activities if a.stage == "handoff"]
    assert [(a.start_ns, a.end_ns) for a in transfers] == [(at(100), at(112))]
    assert [rank["rank"] for rank in transfers[0].detail["ranks"]] == ["3", "0", "1", "2"]
    assert totals_ms(request.section_totals())["handoff"] == 12


def test_recompute_after_a_failed_load_is_ok_fallback() -> None:
    """Case recompute-fallback: 200 + 60 ms are wasted."""
    request = one(
        """
        req 0 - 900
          prefill 0 - 200 @P0 gpus=4
          handoff 200 - 260 @P0>D0 !transport_error
          recompute 260 - 700 @D0
          first_token 700 - 710 @D0
          decode 710 - 880 @D0
        """
    )
    assert request.outcome == "ok_fallback"
    assert totals_ms(request.section_totals()) == {"prefill": 200, "handoff": 60, "recompute": 440, "first_token": 10}
    assert request.wasted_ns == ms(260)
    assert request.wasted_gpu_seconds == pytest.approx(0.2 * 4)


def test_a_load_given_up_for_a_recompute_leaves_the_path() -> None:
    """Case soft-timeout-recompute: the late end of the background load changes nothing."""
    request = one(
        """
        req 0 - 70000
          handoff 0 - 60000 @P0>D0
          recompute 5000 - 6000 @D0
          first_token 6000 - 6010 @D0
          decode 6010 - 69000 @D0
        """
    )
    assert request.ttft_ns == ms(6010)
    assert totals_ms(request.section_totals()) == {"handoff": 5000, "recompute": 1000, "first_token": 10}
    assert "load_given_up" in codes(request)


def test_a_retried_request_is_one_request() -> None:
    """Case retry-one-request: TTFT from the first arrival, the first attempt wasted."""
    request = one(
        """
        req 0 - 900
          prefill 0 - 150 @P0 attempt=0 !prefill failed
          prefill 160 - 500 @P1 attempt=1
          handoff 500 - 560 @P1>D0 attempt=1
          first_token 560 - 600 @D0 attempt=1
          decode 600 - 900 @D0 attempt=1
        """
    )
    assert (request.attempts, request.ttft_ns, request.outcome) == (2, ms(600), "ok_fallback")
    assert request.wasted_ns == ms(150)
    assert request.prefill_worker == "P1"


@pytest.mark.parametrize(
    ("case", "drawing", "ttft_ms"),
    [
        (
            "a retry: the first attempt's token never left the router",
            (
                "req 0 - 900\n first_token 100 - 120 @D0 attempt=0\n prefill 160 - 500 @P1 attempt=1\n"
                " first_token 560 - 600 @D0 attempt=1\n decode 600 - 900 @D0 attempt=1"
            ),
            600,
        ),
        (
            "a migration: the user had tokens before it",
            (
                "req 0 - 900\n first_token 100 - 120 @D0 attempt=0\n decode 120 - 300 @D0 attempt=0\n"
                " first_token 560 - 600 @D1 attempt=1\n decode 600 - 900 @D1 attempt=1"
            ),
            120,
        ),
        ("decode alone: it begins at the first token", "req 0 - 900\n prefill 0 - 90 @P0\n decode 100 - 900 @D0", 100),
    ],
)
def test_which_first_token_the_user_saw(case: str, drawing: str, ttft_ms: float) -> None:
    assert one(drawing).ttft_ns == ms(ttft_ms), case


def test_an_attempt_ends_where_the_next_one_starts() -> None:
    request = one(
        """
        req 0 - 900
          prefill_queue 0 - 700 @P0 attempt=0
          prefill 200 - 500 @P1 attempt=1
          first_token 500 - 520 @D0 attempt=1
        """
    )
    assert totals_ms(request.section_totals()) == {"prefill_queue": 200, "prefill": 300, "first_token": 20}
    assert "attempt_cut" in codes(request)


def test_a_failed_transfer_that_d_never_heard_of() -> None:
    """Case kv-failure-not-propagated: failed_handoff, and 300 s of waiting for nothing."""
    request = one(
        """
        req 0 - 301000
          prefill 0 - 900 @P0
          handoff 900 - 1000 @P0>D0/P0 !NIXL_ERR_REMOTE_DISCONNECT
          decode_queue 900 - 301000 @D0
        """
    )
    assert (request.outcome, request.ttft_ns, request.sections) == ("failed_handoff", None, [])
    assert "NIXL_ERR_REMOTE_DISCONNECT" in request.outcome_text
    waited = [e for e in request.evidence if e.name == "waited_after_failure"]
    assert [e.value for e in waited] == [ms(300_000)]
    assert sum(request.section_totals_to_end().values()) == ms(301_000)


def test_a_prefill_failure_is_not_a_client_timeout() -> None:
    """Case prefill-failure-invisible."""
    request = one(
        """
        req 0 - 30000
          prefill 10 - 50 @P0 !CUDA error: an illegal memory access was encountered
          decode_queue 5 - 30000 @D0
        """
    )
    assert request.outcome == "failed_prefill"
    assert "illegal memory access" in request.outcome_text


def test_a_request_that_waits_for_ever_is_visible() -> None:
    """Case kv-waiting-forever: open with its age, neither dropped nor of length 0."""
    request = one("req 0 -\n prefill 0 - 100 @P0\n decode_queue 120 - @D0", now_ms=900_000)
    assert (request.outcome, request.ttft_ns, request.end_ns) == ("in_flight", None, None)
    assert totals_ms(request.section_totals_to_end()) == {"prefill": 100, "relay": 20, "decode_queue": 899_880}


def test_a_request_of_a_file_that_stays_open_is_unknown() -> None:
    request = one("req 0 -\n prefill 0 - 100 @P0\n decode_queue 120 - 200 @D0")
    assert request.outcome == "unknown"
    assert sum(request.section_totals_to_end().values()) == ms(200)


def test_a_cancelled_request_has_no_ttft_and_its_held_kv_is_not_on_the_path() -> None:
    """Case kv-held-after-cancel."""
    request = one(
        """
        req 0 - 1100
          prefill 0 - 1000 @P0
          kv_hold 1000 - 481000 @P0
        """,
        **{"pdtrace.outcome": "cancelled"},
    )
    assert (request.outcome, request.ttft_ns) == ("cancelled", None)
    assert totals_ms(request.section_totals_to_end()) == {"prefill": 1000, "egress": 100}
    assert [a.end_ns - a.start_ns for a in request.activities if a.stage == "kv_hold"] == [ms(480_000)]


# ----------------------------------------------------------------------------------------------------------- joins

TORN = """
    req 0 - 500
      prefill 10 - 100 @P0 trace=p
      handoff 100 - 140 @P0>D0/P0 trace=p
      decode_queue 140 - 180 @D0
      first_token 180 - 200 @D0
      decode 200 - 500 @D0
"""


def test_a_torn_trace_is_one_request() -> None:
    """Case trace-split-by-P-D."""
    request = one(TORN)
    assert (len(request.trace_ids), request.stitched_by, request.outcome) == (2, "request_id", "ok")
    assert totals_ms(request.section_totals()) == {
        "ingress": 10,
        "prefill": 90,
        "handoff": 40,
        "decode_queue": 40,
        "first_token": 20,
    }


def test_the_same_id_an_hour_later_is_another_request() -> None:
    later = [_moved(span, ms(3_600_000)) for span in spans(TORN.replace("trace=p", "trace=p2"), trace="t2")]
    requests = derive([*spans(TORN), *later])
    assert [(r.ttft_ns, len(r.trace_ids)) for r in requests] == [(ms(200), 2), (ms(200), 2)]


def _moved(span: Span, by_ns: int) -> Span:
    span.start_ns, span.end_ns = span.start_ns + by_ns, span.end_ns + by_ns
    return span


def test_without_an_id_the_trace_joins_if_one_request_can_be_meant() -> None:
    """Case orphan-middle: the gap is unattributed where no front end covers it."""
    drawn = spans("req 0 - 100\n prefill 120 - 300 @P0\n first_token 320 - 350 @D0", request_id=None)
    drawn[1] = replace(drawn[1], parent_id="0123456789abcdef")  # never arrives
    (request,) = derive(drawn)
    assert request.stitched_by == "trace_id"
    assert "parent_missing" in codes(request)
    assert totals_ms(request.section_totals()) == {
        "ingress": 100,
        "unattributed": 40,
        "prefill": 180,
        "first_token": 30,
    }


def test_two_front_end_spans_of_one_trace_are_two_requests() -> None:
    drawn = spans("req 0 - 100\n prefill 10 - 50 @P0", request_id="a") + [
        *spans("req 30 - 200\n prefill 60 - 90 @P0", request_id="b")
    ]
    requests = derive(drawn)
    assert sorted(r.request_id for r in requests) == ["a", "b"]
    assert len({r.uid for r in requests}) == 2


def test_spans_that_two_requests_of_a_trace_could_own_are_kept_apart() -> None:
    drawn = [
        *spans("req 0 - 100", request_id="a"),
        *spans("req 20 - 200", request_id="b"),
        *spans("prefill 60 - 90 @P0", request_id=None),
    ]
    requests = derive(drawn)
    assert len(requests) == 3
    assert [codes(r) & {"ambiguous_trace"} for r in requests if not r.aliases and r.mode == "unknown"].count(
        {"ambiguous_trace"}
    ) == 1


def test_resource_attributes_are_accepted_on_a_span_which_wins() -> None:
    drawn = spans("req 0 - 100\n prefill 10 - 50 @P0\n first_token 50 - 60 @D0")
    drawn[1].attributes |= {"service.instance.id": "P7", "pdtrace.worker.role": "prefill", "pdtrace.run": "night"}
    (request,) = derive(drawn)
    assert (request.prefill_worker, request.decode_worker, request.run) == ("P7", "D0", "night")
    assert {a.clock for a in request.activities if a.stage == "prefill"} == {"process:P7"}


def test_no_edge_span_means_from_the_first_worker() -> None:
    request = one("prefill_queue 10 - 30 @P0\n prefill 30 - 100 @P0\n first_token 130 - 150 @D0")
    assert (request.ttft_basis, request.ttft_ns) == ("engines", ms(140))
    assert "no_edge_span" in codes(request)
    assert totals_ms(request.section_totals()) == {
        "prefill_queue": 20,
        "prefill": 70,
        "unattributed": 30,
        "first_token": 20,
    }


def test_links_to_spans_that_are_not_here_are_listed() -> None:
    """Case cp-followsfrom-other-trace."""
    drawn = spans("req 0 - 100\n prefill 10 - 50 @P0\n first_token 50 - 60 @D0")
    drawn[0].links.append(("a" * 32, "b" * 16))
    (request,) = derive(drawn)
    assert request.ttft_ns == ms(60)
    assert [e.value for e in request.evidence if e.name == "link_outside"] == [f"{'a' * 32}/{'b' * 16}"]


def test_arrival_order_changes_nothing() -> None:
    """Case show-before-complete: any order of the same spans gives the same request."""
    drawn = spans(TORN)
    expected = repr(derive(drawn))
    for seed in range(5):
        shuffled = list(drawn)
        random.Random(seed).shuffle(shuffled)
        assert repr(derive(shuffled)) == expected


def test_a_request_is_visible_from_its_first_span() -> None:
    (request,) = derive([s for s in spans(TORN) if s.name == "pdtrace.decode_queue"], now_ns=at(1000))
    assert request.outcome == "in_flight"
    assert request.ttft_ns is None


def test_a_hundred_thousand_spans_in_one_request() -> None:
    drawn = spans("req 0 - 2000000\n first_token 1500000 - 1500001 @D0")
    parent = drawn[0].span_id
    for number in range(100_000):
        (span,) = spans(f"handoff {number * 10} - {number * 10 + 6} @P0>D0")
        drawn.append(replace(span, span_id=f"{number + 1:016x}", parent_id=parent))
        parent = drawn[-1].span_id  # a chain as deep as it is long
    (request,) = derive(drawn)
    assert request.span_count == 100_002
    assert request.section_totals()["handoff"] == 100_000 * ms(6)
    assert sum(request.section_totals().values()) == request.ttft_ns == ms(1_500_001)


# ----------------------------------------------------------------------------------------------------------- clocks

SKEWED = """
    req 90 - 400 host=gateway
      prefill 92 - 100 @P0 host=a
      handoff 100 - 130 @P0>D0/P0 host=a
      handoff {receive} @P0>D0/D0 host=b
      first_token {first} @D0 host=b
"""


def test_a_receive_that_ends_before_the_send_bounds_the_offset() -> None:
    """Case clock-skew-order: D is at least 29 ms behind; durations stay, TTFT is on the front end's clock."""
    drawing = SKEWED.format(receive="75 - 101", first="101 - 120")
    request = one(drawing, **{"pdtrace.first_token_ns": at(152)})
    (offset,) = [o for o in request.offsets if o.clock == "host:b"]
    assert offset.low_ns == ms(29)
    assert offset.applied_ns == ms(29)
    assert {"clock_shifted", "inverted_gap"} <= codes(request)
    assert request.ttft_ns == ms(62)
    received = [a for a in request.activities if a.stage == "handoff" and a.side == "receive"]
    assert [(a.start_ns, a.end_ns) for a in received] == [(at(104), at(130))]
    assert sum(request.section_totals().values()) == request.ttft_ns
    assert [e.value for e in request.evidence if e.name == "inverted_gap"] == [ms(29)]


@pytest.mark.parametrize(("limit_ms", "applied_ms"), [(5000, 3000), (1000, 0)])
def test_a_shift_beyond_the_limit_is_proposed_and_not_applied(limit_ms: int, applied_ms: int) -> None:
    """Case max-skew-config."""
    drawing = SKEWED.format(receive="-2895 - -2870", first="-2870 - -2850")
    limits = Limits(max_clock_shift_ns=ms(limit_ms))
    request = one(drawing, limits=limits, **{"pdtrace.first_token_ns": at(200)})
    (offset,) = [o for o in request.offsets if o.clock == "host:b"]
    assert (offset.low_ns, offset.applied_ns) == (ms(3000), ms(applied_ms))
    assert ("clock_shift_refused" in codes(request)) == (applied_ms == 0)
    if not applied_ms:
        assert any("3000000000 ns" in w.text for w in request.warnings if w.code == "clock_shift_refused")
    assert request.ttft_ns == ms(110)
    assert all(end > start for _, start, end in request.sections)


def test_equal_clocks_move_nothing() -> None:
    request = one(SKEWED.format(receive="105 - 131", first="131 - 150"), **{"pdtrace.first_token_ns": at(152)})
    assert [o.applied_ns for o in request.offsets] == [0, 0]
    assert not codes(request)


def test_a_span_that_ends_before_it_starts_is_a_warning() -> None:
    request = one("req 0 - 100\n prefill 50 - 40 @P0\n first_token 60 - 80 @D0")
    assert "negative_interval" in codes(request)
    assert totals_ms(request.section_totals()) == {"ingress": 60, "first_token": 20}


def test_a_first_token_before_the_arrival_is_unknown() -> None:
    request = one("req 0 - 100\n prefill 10 - 40 @P0", **{"pdtrace.first_token_ns": at(-5)})
    assert request.ttft_ns is None
    assert "first_token_before_arrival" in codes(request)


@pytest.mark.parametrize(
    ("stated", "drawing", "outcome"),
    [
        ("ok", "recompute 10 - 40 @D0\n first_token 40 - 50 @D0\n decode 50 - 90 @D0", "ok_fallback"),
        ("failed", "prefill 2 - 10 @P0\n handoff 10 - 40 @P0>D0 !transport_error", "failed_handoff"),
        ("failed", "prefill 2 - 10 @P0", "failed"),
        ("failed", "prefill_opaque 2 - 40 @A0 !reset", "failed"),
        ("failed", "prefill_opaque 2 - 40 @P0 !reset", "failed_prefill"),
        ("cancelled", "prefill 2 - 10 @P0\n handoff 10 - 40 @P0>D0 !transport_error", "cancelled"),
        ("ok", "prefill 2 - 10 @P0\n first_token 40 - 50 @D0\n decode 50 - 90 @D0", "ok"),
    ],
)
def test_an_edges_word_and_what_only_the_workers_know(stated: str, drawing: str, outcome: str) -> None:
    (request,) = derive(spans(f"req 0 - 100\n {drawing}", **{"pdtrace.outcome": stated}))
    assert request.outcome == outcome
