"""What the round trip found wrong in pdtrace, each fault as the smallest story that shows it.

Every test states the right answer. What is not mended yet is a strict xfail: it falls when the fault is mended, and then
its line in KNOWN_FAULTS of test_round_trip_dialects goes too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtrace.simulate.story import HostFacts
from tests.simulate.telling import CLUSTER, SEQUENTIAL, Row, batch_of, draw, read_back, tell, wrongs

RECOMPUTED_ON_D = """
req           0 - 300
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0
route        61 - 62
decode_queue 63 - 68    @d0
handoff      68 - 80    @d0  side=destination src=p0 dst=d0 !the transfer failed
recompute    80 - 180   @d0
decode_queue 180 - 185  @d0
first_token  185 - 193  @d0
token        194 - 194
decode       193 - 250  @d0
"""
PROMPT_ON_D = """
req           0 - 200
route         5 - 6
decode_queue  7 - 20    @d0
prefill      20 - 90    @d0
decode_queue 90 - 92    @d0
first_token  92 - 99    @d0
token       100 - 100
decode       99 - 150   @d0
"""
RETRIED = """
req           0 - 400
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0
route        61 - 62
decode_queue 63 - 90    @d0  !decode worker d0 restarted
router_queue 140 - 141            attempt=1
route        141 - 142            attempt=1
prefill_queue 143 - 150  @p1  attempt=1
recompute    150 - 193  @p1  attempt=1
route        194 - 195            attempt=1
decode_queue 196 - 198  @d1  attempt=1
handoff      198 - 210  @d1  side=destination src=p1 dst=d1 attempt=1
decode_queue 210 - 215  @d1  attempt=1
first_token  215 - 223  @d1  attempt=1
token        224 - 224
decode       223 - 300  @d1  attempt=1
"""
TIMED_OUT = """
req           0 - 90
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 60    @p0
route        61 - 62
decode_queue 63 - 90    @d0
"""
RETRIED_UNHEARD = """
req           0 - 400
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 40    @p0  !prefill worker p0 restarted
route        90 - 91              attempt=1
prefill_queue 92 - 95   @p1  attempt=1
recompute    95 - 140   @p1  attempt=1
handoff     140 - 150   @p1  side=source src=p1 dst=d1 attempt=1
first_token 150 - 158   @d1  attempt=1
token       159 - 159
decode      158 - 300   @d1  attempt=1
"""
DIED_PREFILLING = """
req           0 - 90
route         5 - 6
prefill_queue 7 - 17    @p0
prefill      17 - 40    @p0  !prefill worker p0 restarted
decode_queue  7 - 40    @d0  !prefill worker p0 restarted
"""
DIED_DECODING = """
req           0 - 200
route         5 - 6
bootstrap     7 - 8     @p0
prefill_queue 8 - 17    @p0
prefill      17 - 60    @p0
handoff      60 - 70    @p0  side=source src=p0 dst=d0
decode_queue  7 - 8     @d0
decode_queue 70 - 72    @d0
first_token  72 - 80    @d0
token        81 - 81
decode       80 - 150   @d0
"""


def told(dialect: str, drawing: str, **known: object) -> tuple[set[tuple[str, str]], Row]:
    """(stage answered, true stage) of every wrong stretch, and the answer."""
    story = draw(drawing, **known)
    (row,) = read_back(batch_of(tell(dialect, [story])))
    return {(answered, true) for answered, true, _ in wrongs(story, row)}, row


@pytest.mark.xfail(
    strict=True, reason="the gateway's whole time before it sends is read as route; it holds ingress and queue"
)
def test_a_gateway_that_has_not_sent_yet_is_not_routing_all_the_time() -> None:
    wrong, _ = told("sglang", SEQUENTIAL)
    assert wrong == set()


def test_what_a_gateway_does_between_attempts_is_not_called_a_queue() -> None:
    wrong, row = told("sglang", RETRIED, outcome="ok_fallback", attempts=2)
    assert not {true for answered, true in wrong if answered != "route"}
    assert row["sections"]["relay"] > 0


@pytest.mark.xfail(strict=True, reason="all of D's time in the model is read as first_token (definitions, section 2)")
def test_a_recompute_inside_vllms_model_time_is_not_the_first_step() -> None:
    wrong, _ = told("vllm", RECOMPUTED_ON_D, outcome="ok_fallback")
    assert wrong == set()


@pytest.mark.xfail(strict=True, reason="its model time holds the wait and the first step after the prompt")
def test_a_prompt_computed_on_vllms_d_is_prefill_to_its_end_only() -> None:
    wrong, _ = told("vllm", PROMPT_ON_D, mode="prefill_on_decode", prefill_worker=None)
    assert wrong == set()


def test_a_retrys_prompt_work_is_recompute() -> None:
    wrong, _ = told("sglang", RETRIED, outcome="ok_fallback", attempts=2)
    assert ("prefill", "recompute") not in wrong


@pytest.mark.xfail(strict=True, reason="nothing in vLLM's words tells a second attempt")
def test_vllms_second_attempt_is_recompute() -> None:
    wrong, _ = told("vllm", RETRIED, outcome="ok_fallback", attempts=2)
    assert wrong == set()


def test_dynamos_response_timeout_is_timed_out() -> None:
    _, row = told("dynamo", TIMED_OUT, outcome="timed_out")
    assert row["outcome"] == "timed_out"


@pytest.mark.xfail(strict=True, reason="the gateway's 200 is taken for an answer though D never reported")
def test_a_d_that_died_while_it_streamed_has_not_answered() -> None:
    _, row = told(
        "sglang", DIED_DECODING, outcome="failed_decode", mode="overlapped", error="decode worker d0 restarted"
    )
    assert row["outcome"] != "ok"


def test_dynamos_stream_error_outweighs_a_regular_finish_on_d() -> None:
    story = draw(SEQUENTIAL, outcome="failed", error="the connection to the decode worker broke")
    (row,) = read_back(batch_of(tell("dynamo", [story])))
    assert row["outcome"] not in ("ok", "ok_fallback")


def test_cached_tokens_are_those_of_the_p_that_is_named() -> None:
    again = RETRIED.replace("150 - 193  @p1", "150 - 193  @p1 prompt_tokens=1000 cached_tokens=640").replace(
        "17 - 60    @p0", "17 - 60    @p0 prompt_tokens=1000 cached_tokens=64"
    )
    story = draw(again, outcome="ok_fallback", attempts=2, prefill_worker="p1", decode_worker="d1", cached_tokens=640)
    (row,) = read_back(batch_of(tell("native", [story])))
    assert (row["prefill_worker"], row["cached_tokens"]) == ("p1", 640)


def test_a_prefill_after_the_first_token_is_a_clock_fault_that_is_told() -> None:
    """P's clock is 300 ms ahead: its prefill is stamped after the user's first token, and after D had read its state."""
    ahead = replace(CLUSTER, hosts={**CLUSTER.hosts, "node-0": HostFacts(300_000_000, 0.0, 0)})
    (row,) = read_back(batch_of(tell("native", [draw(SEQUENTIAL)], ahead)))
    assert {"clock_shifted", "clock_shift_refused", "clock_conflict"} & set(row["warnings"])


def test_dynamos_broken_stream_is_the_failed_legs() -> None:
    story = draw(DIED_PREFILLING, outcome="failed_prefill", mode="overlapped", error="prefill worker p0 restarted")
    (row,) = read_back(batch_of(tell("dynamo", [story])))
    assert row["outcome"] == "failed_prefill"


@pytest.mark.xfail(strict=True, reason="attempts are counted by the engines' rooms, not by what the gateway sent")
def test_a_retry_after_an_attempt_that_said_nothing_is_recompute() -> None:
    wrong, _ = told("sglang", RETRIED_UNHEARD, outcome="ok_fallback", attempts=2, mode="overlapped")
    assert ("prefill", "recompute") not in wrong
