"""SGLang 0.5.23 and 0.5.5 as captured: counts, transfers, first tokens and outcomes against what the client saw."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median

from pdtrace.assemble import derive
from pdtrace.dialects.contract import ms_to_ns

MODERN = "pd_e2e_router_plus_sglang"
ROOMS = "pd_minilb_sglang055_rooms"
ROUTER = "pd_router_only"


def union_ms(intervals):
    total, reach = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reach))
        reach = max(reach, end)
    return total / 1e6


def test_every_request_is_one_request(capture):
    modern = derive(capture(MODERN))
    # 39 rooms and one request of which only the router's span and fragments of D came.
    assert Counter(request.stitched_by for request in modern) == {"room": 39, "trace_id": 1}
    assert len(derive(capture(ROOMS))) == 20
    assert len(derive(capture(ROUTER))) == 35  # 37 spans, two of them readiness probes


def test_sections_tile_every_window(capture):
    for name in (MODERN, ROOMS, ROUTER):
        for request in derive(capture(name)):
            sections = request.sections or request.sections_to_end
            assert sections[0].start_ns == request.t0_ns
            assert all(a.end_ns == b.start_ns for a, b in pairwise(sections))
            if request.ttft_ns is not None:
                assert sum(request.section_totals().values()) == request.ttft_ns


def test_outcomes_match_the_faults_the_driver_injected(capture, client):
    outcome = {request.request_id: request for request in derive(capture(MODERN))}
    by_fault = {row["fault"]: outcome[rid] for rid, row in client(MODERN).items() if row["fault"] and rid in outcome}
    assert {fault: request.outcome for fault, request in by_fault.items()} == {
        "slow_bootstrap": "ok",
        "slow_transfer": "ok",
        "retract": "ok",
        "bootstrap_fail": "failed_handoff",
        "transfer_fail": "failed_handoff",
        "prefill_503": "failed",  # nothing but the router's 500 says so
        "decode_500": "failed_decode",  # P finished and handed over, D sent nothing
        "client_abort": "cancelled",
    }
    assert "bootstrap failed" in by_fault["bootstrap_fail"].outcome_text
    assert sum(request.outcome == "ok" for request in outcome.values()) == 35


def test_slow_faults_show_in_their_own_stage(capture, client):
    requests = {request.request_id: request for request in derive(capture(MODERN))}
    by_fault = {row["fault"]: requests.get(rid) for rid, row in client(MODERN).items()}
    slow_bootstrap = by_fault["slow_bootstrap"].section_totals_to_end()
    assert max((s for s in slow_bootstrap if s != "egress"), key=slow_bootstrap.__getitem__) == "bootstrap"
    assert by_fault["slow_transfer"].section_totals_to_end()["handoff"] > ms_to_ns(150)


def test_first_token_is_the_answering_engines_own_and_near_the_clients(capture, client):
    requests = {request.request_id: request for request in derive(capture(MODERN))}
    late_ms = [
        (row["t_send_unix"] + row["client_ttft_s"]) * 1e3 - requests[rid].t1_ns / 1e6
        for rid, row in client(MODERN).items()
        if row["client_ttft_s"] and rid in requests and requests[rid].t1_ns is not None
    ]
    assert len(late_ms) == 18
    assert 2.6 < median(late_ms) < 2.9
    assert min(late_ms) > 0  # no first token after the client had it


def test_whole_answers_have_no_first_token_and_streams_do(capture, client):
    requests = {request.request_id: request for request in derive(capture(MODERN))}
    for rid, row in client(MODERN).items():
        request = requests.get(rid)
        if request is not None and row["stream"] and row["status"] == 200:
            assert request.ttft_ns is not None, rid
        if request is not None and not row["stream"] and row["fault"] is None:
            assert request.ttft_ns is None, rid


def test_ranks_and_sender_traces_merge_chunk_by_chunk(capture, readings):
    widest = (0.0, 0.0)
    for reading in readings(capture(MODERN)):
        sends = [(a.start_ns, a.end_ns) for a in reading.activities if a.stage == "handoff"]
        if sends and reading.facts.get("request_id", "").startswith("chatcmpl-ZHuF"):
            widest = (union_ms(sends), (max(e for _, e in sends) - min(s for s, _ in sends)) / 1e6)
    assert (round(widest[0]), round(widest[1])) == (88, 277)


def test_what_is_left_of_the_wait_after_the_last_transfer_is_decode_queue(capture):
    left_ms = []
    for request in derive(capture(MODERN)):
        sends = [a.end_ns for a in request.activities if a.stage == "handoff"]
        waits = [e for e in request.evidence if e.name == "waited_for_transfer"]
        if sends and waits:
            (rest,) = (a for a in request.activities if a.stage == "decode_queue" and a.span_id == waits[0].span_id)
            assert rest.start_ns >= max(sends)  # later where D had not begun to wait by then
            left_ms.append((rest.end_ns - max(sends)) / 1e6)
    assert len(left_ms) == 36
    assert round(median(left_ms), 1) == 5.9
    assert round(max(left_ms)) in (150, 151)


def test_tokens_are_counted_from_the_answering_side(capture, client):
    for request in derive(capture(MODERN)):
        row = client(MODERN).get(request.request_id)
        if row and row["status"] == 200:
            assert request.output_tokens == len(request.token_times_ns) == row["max_tokens"]
            assert request.input_tokens == row["prompt_tokens"]
            assert request.cached_tokens == row["cached_tokens_at_prefill"]


def test_nothing_moves_on_one_host(capture):
    for name in (MODERN, ROOMS):
        assert not any(w.code.startswith("clock") for request in derive(capture(name)) for w in request.warnings)


def test_old_form_warns_that_its_slices_include_queues(capture):
    requests = derive(capture(ROOMS))
    assert all("includes_queue" in {w.code for w in request.warnings} for request in requests)
    assert {request.mode for request in requests} == {"overlapped"}
    assert {request.outcome for request in requests} == {"ok"}
    assert all(request.ttft_basis == "router" for request in requests)
    assert all(request.trace_ids[0].startswith("0" * 16) for request in requests)  # 64-bit ids are valid
    # max_tokens = 1: quick_finish is the whole answer.
    assert sum(len(request.token_times_ns) == 1 for request in requests) == 2


def test_the_router_alone_tells_status_attempts_and_the_chosen_pair(capture, client):
    requests = {request.request_id: request for request in derive(capture(ROUTER))}
    told = client(ROUTER)
    assert Counter(request.outcome for request in requests.values()) == {"ok": 33, "failed": 1, "cancelled": 1}
    for rid, request in requests.items():
        if rid in told and told[rid]["status"] == 200:
            assert request.outcome == "ok"
        assert request.ttft_ns is None
        assert request.prefill_worker == "http://127.0.0.1:13201"
        assert request.decode_worker == "http://127.0.0.1:13202"
    (failed,) = (request for request in requests.values() if request.outcome == "failed")
    assert (told[failed.request_id]["fault"], failed.attempts, failed.http_status) == ("transfer_fail", 2, 500)


def test_a_decode_host_whose_clock_is_off_is_found_and_its_stamps_are_kept(capture):
    def skewed(by_ns):
        spans = capture(MODERN)
        decode = {s.resource["service.instance.id"] for s in spans if s.name.lower().startswith("decode")}
        moved = [
            replace(s, start_ns=s.start_ns + by_ns, end_ns=s.end_ns + by_ns)
            if s.resource.get("service.instance.id") in decode
            else s
            for s in spans
        ]
        return derive(moved)

    straight = derive(capture(MODERN))
    for by_ms in (-400, 700):
        requests = skewed(ms_to_ns(by_ms))
        assert len(requests) == 40
        shifted = [r for r in requests if "clock_shifted" in {w.code for w in r.warnings}]
        assert len(shifted) >= 30
        for request in requests:
            assert request.ttft_ns is None or request.ttft_ns == sum(request.section_totals().values()) > 0
        assert {r.outcome for r in requests} == {r.outcome for r in straight}
