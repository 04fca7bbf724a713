"""Two drawn requests and what each dialect makes of them, section by section, worked out by hand."""

from __future__ import annotations

import pytest

from tests.simulate.telling import OVERLAPPED, SEQUENTIAL, START_NS, Row, batch_of, choose, draw, read_back, tell

# P is called, answers, D is called and pulls. Times in ms, as drawn in telling.py.
EXPECTED_SEQUENTIAL = {
    "native": "ingress 3, router_queue 2, route 1, relay 1, prefill_queue 10, prefill 43, relay 1, route 1, relay 1, "
    "decode_queue 5, handoff 12, decode_queue 5, first_token 8, egress 1",
    # One closed visit each; the front end's first token, of which ttft_ms drops what two decimals do not hold.
    "dynamo": "ingress 3, router_queue 2, route 1, relay 1, prefill_opaque 53, relay 1, route 1, relay 1, decode_opaque 31",
    # The router says nothing of choosing; D's wait holds the transfer; the window ends with D's token.
    "vllm": "ingress 7, prefill_queue 10, prefill 43, relay 3, decode_queue 22, first_token 8",
}
# Both are called at once: P waits for D's room, state streams from 30 on.
EXPECTED_OVERLAPPED = {
    "native": "ingress 5, route 1, relay 1, prefill_queue 5, bootstrap 5, prefill 43, handoff 6, decode_queue 19, "
    "first_token 8, egress 1",
    "dynamo": "ingress 5, route 1, relay 1, prefill_opaque 59, decode_opaque 28",
    # What the gateway does before it sends has no stamps: see test_round_trip_faults.
    "sglang": "relay 1, prefill_queue 5, bootstrap 5, prefill 43, handoff 6, decode_queue 19, first_token 8",
}


def answer(dialect: str, drawing: str, **known: object) -> Row:
    story = choose(draw(drawing, **known), "p0", 5.5)
    (row,) = read_back(batch_of(tell(dialect, [story])))
    return row


def shown(row: Row) -> str:
    return ", ".join(f"{stage} {round((end - start) / 1e6)}" for stage, start, end in row["section_list"])


@pytest.mark.parametrize("dialect", list(EXPECTED_SEQUENTIAL))
def test_one_after_the_other(dialect: str) -> None:
    row = answer(dialect, SEQUENTIAL)
    assert shown(row) == EXPECTED_SEQUENTIAL[dialect]
    assert (row["mode"], row["outcome"], row["input_tokens"], row["output_tokens"]) == ("sequential", "ok", 1000, 3)
    assert ("may_hold_transfer" in row["warnings"]) == (dialect == "vllm")
    assert row["cached_tokens"] == (640 if dialect == "native" else None)


@pytest.mark.parametrize("dialect", list(EXPECTED_OVERLAPPED))
def test_both_at_once(dialect: str) -> None:
    row = answer(dialect, OVERLAPPED, mode="overlapped")
    assert shown(row).endswith(EXPECTED_OVERLAPPED[dialect])
    assert row["ttft_ns"] // 1_000_000 == {"native": 94, "dynamo": 93, "sglang": 93}[dialect]
    assert row["mode"] == "overlapped"
    assert row["hidden"].get("handoff", 0) == (0 if dialect == "dynamo" else 30_000_000)


def test_dynamo_predicts_what_p_does_not_confirm() -> None:
    row = answer("dynamo", SEQUENTIAL)
    evidence = {each["name"]: each["value"] for each in row["evidence"]}
    assert evidence["predicted_overlap_blocks"] == 10  # 640 tokens in blocks of 64
    assert evidence["kv_transfer_estimated"] == 34_000_000  # an upper bound: P's answer to D's token


def test_a_wait_on_d_over_the_arrival_of_its_state_is_a_queue_only_after_it() -> None:
    """SGLang: until the state is there D's wait is P's work; what is left of it is D's queue."""
    waiting = OVERLAPPED.replace("decode_queue  7 - 17 ", "decode_queue  7 - 85 ").replace(
        "decode_queue 66 - 85    @d0\n", ""
    )
    assert waiting.count("decode_queue") == 1
    row = answer("sglang", waiting, mode="overlapped")
    queues = [(start, end) for stage, start, end in row["section_list"] if stage == "decode_queue"]
    assert queues == [(START_NS + 66_000_000, START_NS + 85_000_000)]
