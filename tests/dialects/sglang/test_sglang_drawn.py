"""SGLang requests drawn by hand: what the captures do not hold."""

from dataclasses import replace

import pytest

from pdtrace.assemble import derive
from pdtrace.dialects.sglang import SglangDialect
from pdtrace.dialects.sglang_visits import finish_reasons, room_of
from pdtrace.model import Key

MS = 1_000_000


def draw_pair(drawing, room="0xff", offset_ms=0.0, trace=1):
    """
    P root     0 - 60   @hp   forward 10 - 50 (tp0), 12 - 52 (tp1); transfer tail 50 - 58
    D root     1 - 100  @hd   transferred 5 - 60, waiting 60 - 64, fake_output 64 - 66, token out 68
    """

    def at(start, end):
        return (start + offset_ms, end + offset_ms)

    p = drawing.visit("prefill", at(0, 60), room, trace, gen_ai__usage__cached_tokens=7)
    for rank, late in ((0, 0), (1, 2)):
        scheduler = drawing.thread("Prefill Scheduler", at(5, 59), p, rank)
        drawing.add("prefill_waiting", at(5, 10 + late), scheduler)
        drawing.add("prefill_forward", at(10 + late, 50 + late), scheduler)
        drawing.add("prefill_transfer_kv_cache", at(50 + late, 58), scheduler)
    d = drawing.visit(
        "decode", at(1, 100), room, trace, gen_ai__latency__time_to_first_token=0.067, gen_ai__usage__cached_tokens=40
    )
    scheduler = drawing.thread("Decode Scheduler", at(4, 100), d, 0)
    drawing.add("decode_transferred", at(5, 60), scheduler)
    drawing.add("decode_waiting", at(60, 64), scheduler)
    forward = drawing.add("decode_forward", at(64, 100), scheduler)
    drawing.add("fake_output", at(64, 66), forward)
    drawing.add("decode_loop", at(66, 80), forward, decode_ct=0)
    return p, d


def test_a_pair_without_a_router(drawing):
    p, d = draw_pair(drawing)
    (request,) = derive(drawing.spans)
    assert request.ttft_basis == "engines"
    assert request.t0_ns == p.start_ns
    assert request.ttft_ns == 68 * MS
    assert request.section_totals() == {
        "prefill_opaque": 5 * MS - 1 * MS + 1 * MS,
        "prefill_queue": 5 * MS,
        "prefill": 42 * MS,
        "handoff": 6 * MS,
        "decode_queue": 6 * MS,  # what is left of the wait after the transfer, and decode_waiting
        "first_token": 4 * MS,  # fake_output, and the token's way out of D
    }
    assert (request.prefill_worker, request.decode_worker) == ("prefill-tokenizer", "decode-tokenizer")
    assert request.cached_tokens == 7  # never D's 40
    assert request.request_id == d.attributes["rid"]
    assert request.outcome == "ok"


def test_a_room_joins_traces_and_one_used_again_an_hour_later_does_not(drawing):
    draw_pair(drawing, trace=1)
    for place, span in enumerate(drawing.spans):  # D's spans in a trace of their own
        if any(word in span.name for word in ("decode", "Decode", "fake")):
            drawing.spans[place] = replace(span, trace_id=f"{2:032x}")
    (request,) = derive(drawing.spans)
    assert request.stitched_by == "room"
    assert len(request.trace_ids) == 2
    draw_pair(drawing, offset_ms=3_600_000, trace=3)
    assert len(derive(drawing.spans)) == 2


@pytest.mark.parametrize(
    ("raw", "room"),
    [
        ("0x16d5b706fb42df3d", "1645422479486934845"),
        ("0xFFFFFFFFFFFFFFFF", "18446744073709551615"),
        ("1645422479486934845", "1645422479486934845"),
        (1645422479486934845, "1645422479486934845"),
        (-1, "18446744073709551615"),
        ("0x0", None),
        (0, None),
        ("room 7", None),
        ("", None),
        (True, None),
        (None, None),
    ],
)
def test_rooms_are_decimal_u64_and_room_0_is_none(drawing, raw, room):
    span = drawing.visit("decode", (0, 1), "0x1")
    span.attributes["bootstrap_room"] = raw
    assert room_of(span) == room
    keys = SglangDialect().identify(span).keys
    assert (Key("room", room) in keys) == (room is not None)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('["length"]', ["length"]),
        ('[{"type": "stop", "matched": 2}]', ["stop"]),
        ('{"type": "abort", "message": "x"}', ["abort"]),
        (["stop"], ["stop"]),
        ("stop", ["stop"]),
        ("[broken", ["[broken"]),
        ("", []),
        (None, []),
        (5, ["5"]),
    ],
)
def test_finish_reasons_in_every_form(raw, words):
    assert finish_reasons(raw) == words


def test_unified_mode_is_one_aggregated_visit(drawing):
    # " Req"  0 - 50 @hp   request_process 1 - 2, prefill_waiting 2 - 10, prefill_forward 10 - 30; first token 31
    root = drawing.add(" Req 1234", (0, 50), rid="1234", gen_ai__latency__time_to_first_token=0.031)
    root.attributes["gen_ai.response.finish_reasons"] = '["stop"]'
    scheduler = drawing.thread("Scheduler", (1, 50), root, 0)
    drawing.add("request_process", (1, 2), scheduler)
    drawing.add("prefill_waiting", (2, 10), scheduler)
    drawing.add("prefill_forward", (10, 30), scheduler)
    (request,) = derive(drawing.spans)
    assert (request.mode, request.outcome, request.ttft_ns) == ("aggregated", "ok", 31 * MS)
    totals = request.section_totals()
    assert (totals["prefill_queue"], totals["prefill"]) == (9 * MS, 20 * MS)


def test_an_abort_names_its_stage_and_is_reported_once_for_all_ranks(drawing, readings):
    p = drawing.visit("prefill", (0, 30), "0xab", reasons='["abort"]')
    for rank in (0, 1):
        drawing.thread("Prefill Scheduler", (1, 20 + rank), p, rank, status=2, reason=f"Prefill OOM rank={rank}")
    (reading,) = readings(drawing.spans)
    assert [(f.stage, f.text) for f in reading.failures] == [("prefill", "Prefill OOM rank=0")]
    assert reading.envelopes[0].failed
    assert "client_cancelled_ns" not in reading.facts


def test_an_abort_without_a_reason_is_still_a_failure(drawing):
    drawing.visit("decode", (0, 30), "0xab", reasons='["abort"]')
    (request,) = derive(drawing.spans)
    assert request.outcome == "failed_decode"


def test_health_checks_are_noise_and_so_are_fastapis_spans(drawing):
    probe = drawing.add("decode Req HEALTH_C", (0, 1), rid="HEALTH_CHECK_1796.2")
    http = drawing.add("POST /generate", (0, 1))
    http.scope = "fastapi"
    assert SglangDialect().identify(probe).part == "noise"
    assert SglangDialect().identify(http).part == "noise"


def test_a_health_check_takes_its_whole_visit_with_it_and_nothing_else(drawing):
    probe = drawing.add("decode Req HEALTH_C", (0, 9), rid="HEALTH_CHECK_1796.2")
    scheduler = drawing.thread("Decode Scheduler", (1, 8), probe, 0)
    drawing.add("decode_forward", (2, 8), scheduler)
    assert derive(drawing.spans) == []
    draw_pair(drawing, trace=2)
    http = drawing.add("POST /generate", (0, 100), trace=2)
    http.scope = "fastapi"
    for place, span in enumerate(drawing.spans):
        if " Req " in span.name and span.trace_id == http.trace_id:
            drawing.spans[place] = replace(
                span, parent_id=http.span_id
            )  # FastAPI's span is dropped, the engines' below it are not
    (request,) = derive(drawing.spans[::-1])
    assert request.ttft_ns == 68 * MS


def test_a_sender_alone_is_p_s_handoff(drawing, readings):
    root = drawing.add("Sender Req 0xab", (0, 30), rid="0xab", module="sglang::mooncake", bootstrap_room="0xab")
    worker = drawing.thread("mooncake transfer worker 0", (10, 20), root, 1)
    send = drawing.add("mooncake_worker_send", (10, 20), worker)
    drawing.add("mooncake_worker_send_session", (11, 19), send)
    (reading,) = readings(drawing.spans)
    (handoff,) = reading.activities
    assert (handoff.stage, handoff.role, handoff.rank, handoff.clock) == ("handoff", "prefill", "tp1", "host:hp")
    assert handoff.end_ns - handoff.start_ns == 10 * MS


def test_a_retried_room_is_a_second_attempt_and_prompts_of_one_batch_are_not(drawing, readings):
    draw_pair(drawing, "0x1")
    draw_pair(drawing, "0x2", offset_ms=200)
    top = drawing.add("router Req 77", (0, 400), rid="0")
    for place, span in enumerate(drawing.spans):
        if " Req 0x" in span.name and not span.parent_id:
            drawing.spans[place] = replace(span, parent_id=top.span_id)
    (reading,) = readings(drawing.spans)
    assert sorted({e.attempt for e in reading.envelopes}) == [0, 1]
    for span in drawing.spans:  # the same two rooms at the same time
        if span.start_ns >= min(e.start_ns for e in reading.envelopes if e.attempt == 1):
            span.start_ns -= 200 * MS
            span.end_ns -= 200 * MS
    (reading,) = readings(drawing.spans)
    assert {e.attempt for e in reading.envelopes} == {0}
