"""The sentence on top: what it leads with, and that its shares add up."""

from __future__ import annotations

import pytest

from pdtrace_dashboard import headline

MS = 1_000_000
S = 1_000 * MS


def bucket(n: int, **sections_ms: int) -> dict:
    return {"first_tokens": n, "sections": {stage: ms * MS for stage, ms in sections_ms.items()}}


def answer(buckets, *, outcomes=None, in_flight=0, age_s=0) -> dict:
    n = sum(one["first_tokens"] for one in buckets)
    return {
        "now_ns": 1_000 * S,
        "buckets": buckets,
        "totals": {
            "offered": n, "requests": n, "p99_ns": 400 * MS, "mean_ns": 200 * MS,
            "sections": {"prefill": 150 * MS, "decode_queue": 50 * MS},
        },
        "outcomes": outcomes or {"ok": n},
        "in_flight": {"count": in_flight, "oldest_ns": (1_000 - age_s) * S if in_flight else None},
    }  # fmt: skip


CALM = [bucket(10, prefill=150, decode_queue=50)] * 24
SPIKE = [bucket(10, prefill=150, decode_queue=50)] * 12 + [bucket(10, prefill=170, decode_queue=430)] * 12


def test_nothing_stands_out_says_so_with_numbers():
    said = headline.live(answer(CALM), bucket_s=5)
    assert said == "Nothing stands out: TTFT p99 is 400 ms, mean 200 ms (n = 240); 75 % of the mean is prefill."


def test_growth_names_its_ratio_its_stage_and_its_share():
    said = headline.live(answer(SPIKE), bucket_s=5, where=" on decode-2")
    assert "mean TTFT of the last 60 s is 600 ms, 3.0x the time before" in said.replace("Mean", "mean")
    assert "95 % of the growth is D queue on decode-2" in said  # 380 of 400 ms


def test_growth_adds_up_to_the_difference_of_means():
    grown = headline.growth(SPIKE)
    assert grown is not None
    assert grown.recent_ns - grown.before_ns == pytest.approx(400 * MS)
    assert (grown.group, grown.group_ns) == ("D queue", pytest.approx(380 * MS))


def test_growth_weighs_by_request_and_wants_twenty_on_either_side():
    assert headline.growth([bucket(1, prefill=1)] * 24) is None
    uneven = [bucket(10, prefill=100)] * 12 + [bucket(30, prefill=100), bucket(10, prefill=500)] + [bucket(0)] * 10
    assert headline.growth(uneven).recent_ns == pytest.approx(200 * MS)


def test_failures_come_first_worst_first_in_words():
    said = headline.live(answer(CALM, outcomes={"ok": 90, "failed_handoff": 3, "rejected": 7}), bucket_s=5)
    assert said.startswith("10 % of 100 requests did not succeed (7 rejected, 3 failed in the handoff)")


@pytest.mark.parametrize("outcome", ["invalid", "cancelled", "ok_fallback", "in_flight", "unknown"])
def test_what_is_not_the_services_failure_is_not_called_one(outcome):
    said = headline.live(answer(CALM, outcomes={"ok": 90, outcome: 10}), bucket_s=5)
    assert said.startswith("Nothing stands out")


def test_a_stuck_request_is_told_with_its_age():
    """Case kv-waiting-forever: open for 900 s, not dropped and not 0."""
    said = headline.live(answer(CALM, in_flight=1, age_s=900), bucket_s=5)
    assert said.startswith("The oldest of 1 in flight is 900 s old")


def test_the_culprit_is_named_only_if_it_is_clearly_worse():
    def row(name, n, queue_ms):
        return {"decode_worker": name, "requests": n, "sections": {"decode_queue": queue_ms * MS}}

    worse = headline.culprit([row("decode-0", 100, 30), row("decode-2", 40, 930)], "decode_worker", "D queue")
    assert worse == " on decode-2 (930 ms a request, elsewhere 30 ms)"
    assert headline.culprit([row("a", 100, 30), row("b", 100, 40)], "decode_worker", "D queue") == ""
    assert headline.culprit([row("a", 100, 30), row("b", 19, 900)], "decode_worker", "D queue") == ""
    assert headline.culprit([row("a", 100, 900)], "decode_worker", "D queue") == ""
    assert headline.culprit([row("a", 100, 30), row(None, 100, 900)], "decode_worker", "D queue") == ""


def test_the_p99_band_is_explained_by_means_not_by_stage_percentiles():
    """Case p99-stack, as the mean of 100 requests and of the two slowest."""
    total = {
        "requests": 100, "mean_ns": 128 * MS, "p99_ns": 1_010 * MS, "sections": {"prefill": 109 * MS, "handoff": 19 * MS},
        "p99_requests": 2, "p99_mean_ns": 1_010 * MS, "p99_sections": {"prefill": 550 * MS, "handoff": 460 * MS},
    }  # fmt: skip
    assert headline.ttft(total).endswith("The slowest 1 % (2) take 1,010 ms: 50 % of the difference is prefill.")


def test_a_request_without_a_first_token_says_how_it_ended_and_where():
    row = {
        "ttft_ns": None, "outcome": "failed_handoff", "outcome_text": "", "mode": "sequential",
        "sections_to_end": {"prefill": 100 * MS, "handoff": 300 * MS},
    }  # fmt: skip
    assert headline.request(row) == "No first token: outcome failed_handoff after 400 ms, 75 % of it handoff."
