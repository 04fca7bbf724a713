"""Tiny clusters whose every stamp was worked out by hand (costs: see clusters.ROUND)."""

from __future__ import annotations

from dataclasses import replace

from pdtrace.simulate.causes import Drain, FailTransfers, LeakHolds, Restart, SlowLink
from pdtrace.simulate.cluster import Worker
from tests.simulate.clusters import D, P, ask, cluster, of, play, played, times


def test_sequential_one_after_the_other() -> None:
    """
    front end  0 ................................................................................. 22,432
    route        10-30                                  P: 30+5
      prefill          35 - 20,135 (20 tokens, one step of 100)
      route                        20,140-20,150        answer +5, half a decision, call +5
      handoff                              20,155 - 22,162 (2,000 bytes, latency 7)
      first_token                                   22,162 - 22,712 (500 + 50)
      decode                                                 22,712 - 23,812
    """
    (story,) = play(cluster(), ask(0, 0, 20))
    assert times(story) == [
        ("container", 0, 23_820),
        ("route", 10, 30),
        ("prefill", 35, 20_135),
        ("kv_hold", 20_135, 22_162),
        ("route", 20_140, 20_150),
        ("handoff", 20_155, 22_162),
        ("first_token", 22_162, 22_712),
        ("decode", 22_712, 23_812),
    ]  # fmt: skip
    assert story.token_times_ns == [22_720, 23_270, 23_820]
    assert (story.first_token_ns, story.end_ns, story.outcome, story.mode) == (22_720, 23_820, "ok", "sequential")
    assert (story.cached_tokens, story.output_tokens, story.http_status) == (0, 3, 200)
    assert of(story, "kv_hold")[0].detail == {"bytes": 2_000, "released_by": "pull"}


def test_overlapped_waits_for_room_before_prefill() -> None:
    """D reserves at 35 and P hears of it at 40: 5 ns of bootstrap."""
    (story,) = play(cluster(mode="overlapped"), ask(0, 0, 20))
    assert times(story, "bootstrap", "prefill", "handoff", "first_token") == [
        ("bootstrap", 35, 40),
        ("prefill", 40, 20_140),
        ("handoff", 20_140, 22_147),
        ("first_token", 22_147, 22_697),
    ]
    assert of(story, "handoff")[0].side == "source"


def test_chunked_prefill_and_chunked_handoff() -> None:
    """250 tokens at 100 a step: steps of 100,100 / 100,100 / 50,100 ns; each chunk moves while the next is computed."""
    (story,) = play(cluster(mode="overlapped", streaming="chunked"), ask(0, 0, 250))
    assert times(story, "prefill") == [("prefill", 40, 250_340)]
    handoffs = of(story, "handoff")
    assert [(d.chunk, d.start_ns, d.end_ns, d.detail["bytes"]) for d in handoffs] == [
        ("0", 100_140, 110_147, 10_000),
        ("1", 200_240, 210_247, 10_000),
        ("2", 250_340, 255_347, 5_000),
    ]
    assert times(story, "first_token")[0][1] == 255_347


def test_layerwise_handoff_ends_one_layer_after_prefill() -> None:
    """2,000 bytes stream from the first layer on (100 / 10 ns after the start); the last tenth moves after the end."""
    (story,) = play(cluster(mode="overlapped", streaming="layerwise"), ask(0, 0, 20))
    assert times(story, "prefill", "handoff") == [("prefill", 40, 20_140), ("handoff", 50, 20_140 + 200 + 7)]


def test_layerwise_handoff_on_a_slow_link_ends_when_its_bytes_are_through() -> None:
    """At 0.05 bytes a ns 2,000 bytes take 40,000 ns: the link is what is waited for."""
    (story,) = play(cluster(mode="overlapped", streaming="layerwise", gb_per_s=0.05), ask(0, 0, 20))
    assert times(story, "handoff") == [("handoff", 50, 40_057)]


def test_two_transfers_share_a_link() -> None:
    """Two prompts end in one step; each transfer has half of the link: 4,000 bytes take what two of 2,000 take."""
    stories = play(cluster(replace(P, token_budget=1_000), D), ask(0, 0, 20), ask(1, 0, 20))
    # The first is in a step of its own: it came 20 ns earlier. The second's prefill follows.
    assert times(stories[0], "prefill") == [("prefill", 35, 20_135)]
    assert times(stories[1], "prefill_queue", "prefill") == [("prefill_queue", 55, 20_135), ("prefill", 20_135, 40_235)]
    slow = cluster(replace(P, token_budget=1_000), D, gb_per_s=0.05)
    first, second = play(slow, ask(0, 0, 20), ask(1, 0, 20))
    # Alone until 40,255: 20,100 ns at 0.05 = 1,005 bytes; then 995 bytes at half of it; then the other alone again.
    assert times(first, "handoff") == [("handoff", 20_155, 40_255 + 39_800 + 7)]
    assert times(second, "handoff") == [("handoff", 40_255, 40_255 + 39_800 + 20_100 + 7)]


def test_two_transfers_one_after_the_other_in_fifo() -> None:
    """The second waits until 20,155 + 40,000 for the NIC."""
    first, second = play(
        cluster(replace(P, token_budget=1_000), D, gb_per_s=0.05, sharing="fifo"), ask(0, 0, 20), ask(1, 0, 20)
    )
    assert times(first, "handoff") == [("handoff", 20_155, 60_162)]
    assert times(second, "handoff") == [("handoff", 40_255, 100_162)]


def test_same_host_takes_nvlink() -> None:
    """10 bytes a ns inside a host: 2,000 bytes in 200 ns."""
    (story,) = play(cluster(P, replace(D, host="host-p")), ask(0, 0, 20))
    assert of(story, "handoff")[0].detail["path"] == "nvlink"
    assert times(story, "handoff") == [("handoff", 20_155, 20_362)]


def test_slow_link_from_its_onset_on() -> None:
    """A transfer in progress slows down: 845 bytes until 21,000, the other 1,155 at a tenth of the speed."""
    (story,) = play(cluster(), ask(0, 0, 20), causes=[(21_000, SlowLink("host-p", "host-d", 0.1))])
    assert times(story, "handoff") == [("handoff", 20_155, 21_000 + 11_550 + 7)]


def test_cached_prefix_is_not_computed_again() -> None:
    """The second prompt finds 20 of its 35 tokens; one that is there whole computes its last block again."""
    shape = cluster()
    stories = play(
        shape,
        ask(0, 0, 25, shared=[7, 8]),
        ask(1, 1_000_000, 35, shared=[7, 8]),
        ask(2, 2_000_000, 20, shared=[7, 8]),
    )
    assert [story.cached_tokens for story in stories] == [0, 20, 10]
    assert times(stories[1], "prefill") == [("prefill", 1_000_035, 1_000_035 + 100 + 15_000)]
    assert stories[1].choices[0].overlap_tokens == stories[1].choices[0].truth == [20]


def test_eviction_takes_the_least_recently_used() -> None:
    """Room for six blocks, four are idle: the third prompt needs three and pushes out the end of the first one's."""
    shape = cluster(replace(P, blocks=6), D)
    stories = play(
        shape,
        ask(0, 0, 25, shared=[1, 2]),  # 3 blocks, 2 of them stay
        ask(1, 1_000_000, 25, shared=[3, 4]),
        ask(2, 2_000_000, 25, shared=[5, 6]),
        ask(3, 3_000_000, 25, shared=[3, 4]),
        ask(4, 4_000_000, 25, shared=[1, 2]),
    )
    assert [story.cached_tokens for story in stories] == [0, 0, 0, 20, 10]


def test_a_predicting_router_does_not_see_evictions() -> None:
    """It believes what it sent is still there; the truth stands beside it."""
    shape = cluster(replace(P, blocks=4), D, knowledge="predicted")
    stories = play(
        shape,
        ask(0, 0, 25, shared=[1, 2]),
        ask(1, 1_000_000, 35, shared=[3, 4, 5]),
        ask(2, 2_000_000, 25, shared=[1, 2]),
    )
    choice = stories[2].choices[0]
    assert (choice.overlap_tokens, choice.truth, stories[2].cached_tokens) == ([20], [0], 0)


def test_expired_lease_fails_the_handoff_and_the_request() -> None:
    """D is full until the first is done; P gives the second one's state up meanwhile: a refused pull of two latencies."""
    full = replace(D, most_running=1)
    first, second = play(cluster(P, full, lease_ns=4_000, on_lost_state="fail"), ask(0, 0, 20, 100), ask(1, 0, 20, 3))
    assert first.outcome == "ok"
    (hold,) = of(second, "kv_hold")
    assert (hold.start_ns, hold.end_ns, hold.detail["released_by"]) == (40_235, 44_235, "timeout")
    (pull,) = of(second, "handoff")
    assert (pull.detail["result"], pull.failed, pull.end_ns - pull.start_ns) == ("expired", "the lease has expired", 14)
    assert (second.outcome, second.first_token_ns, second.http_status) == ("failed_handoff", None, 500)


def test_expired_lease_with_recompute_is_a_fallback() -> None:
    """D computes 20 tokens itself: 100 + 40,000 ns."""
    full = replace(D, most_running=1)
    _, second = play(cluster(P, full, lease_ns=4_000), ask(0, 0, 20, 100), ask(1, 0, 20, 3))
    pull, again = of(second, "handoff")[0], of(second, "recompute")[0]
    assert again.start_ns == pull.end_ns
    assert again.end_ns - again.start_ns == 40_100
    assert (second.outcome, second.output_tokens) == ("ok_fallback", 3)


def test_failing_transfers_hit_the_unlucky_alone() -> None:
    """Luck is drawn at arrival; a share of 0.4 fails those below it."""
    stories = play(
        cluster(), ask(0, 0, 20, luck=0.39), ask(1, 100_000, 20, luck=0.41), causes=[(0, FailTransfers(0.4))]
    )
    assert [story.outcome for story in stories] == ["ok_fallback", "ok"]
    assert of(stories[0], "handoff")[0].detail["result"] == "transport_error"


def test_decode_queue_when_there_is_no_room() -> None:
    """One slot: the second waits on D until the first has its last token (22,162 + 10 * 550)."""
    first, second = play(cluster(P, replace(D, most_running=1)), ask(0, 0, 20, 10), ask(1, 0, 20, 3))
    leaves_ns = 22_162 + 10 * 550
    assert times(first, "decode") == [("decode", 22_712, leaves_ns)]
    # The second is at D only later; with 40 tokens more to say the first would still be there.
    assert of(second, "decode_queue") == []
    first, second = play(cluster(P, replace(D, most_running=1)), ask(0, 0, 20, 50), ask(1, 0, 20, 3))
    leaves_ns = 22_162 + 50 * 550
    assert times(second, "decode_queue", "handoff")[:2] == [
        ("decode_queue", 40_255, leaves_ns),
        ("handoff", leaves_ns, leaves_ns + 2_007),
    ]


def test_room_on_d_counts_what_will_be_said() -> None:
    """20 + 80 tokens are ten blocks of twelve: three more blocks have to wait."""
    simulation, (_, second) = played(cluster(P, replace(D, blocks=12)), ask(0, 0, 20, 80), ask(1, 0, 20, 3))
    assert of(second, "decode_queue")[0].end_ns == 22_162 + 80 * 550
    assert simulation.decode_workers["d0"].peak == 10


def test_a_batch_of_two_steps_slower_and_joins_at_a_boundary() -> None:
    """
    first   20,155 handoff 22,162 | 22,712 | 23,262 | ... steps of 550 while alone
    second                              arrives 42,262: waits for the boundary at 22,162 + 37 * 550 = 42,512
            from there steps of 600 for both
    """
    first, second = play(cluster(), ask(0, 0, 20, 60), ask(1, 0, 20, 3))
    assert times(second, "handoff", "decode_queue", "first_token") == [
        ("handoff", 40_255, 42_262),
        ("decode_queue", 42_262, 42_512),
        ("first_token", 42_512, 43_112),
    ]
    gaps = [b - a for a, b in zip(first.token_times_ns, first.token_times_ns[1:], strict=False)]
    assert gaps == [550] * 36 + [600] * 3 + [550] * 20
    assert second.token_times_ns == [43_120, 43_720, 44_320]


def test_a_cancelled_request_ends_everywhere_at_once() -> None:
    """The client goes in the middle of prefill; nothing is left on P and the next one runs as if alone."""
    simulation, (first, second) = played(cluster(), ask(0, 0, 20, patience_ns=10_000), ask(1, 100_000, 20))
    assert times(first) == [("container", 0, 10_000), ("route", 10, 30), ("prefill", 35, 10_000)]
    assert (first.outcome, first.first_token_ns, first.http_status) == ("cancelled", None, 499)
    assert times(second, "prefill") == [("prefill", 100_035, 120_135)]
    assert simulation.prefill_workers["p0"].cache.used == 2  # the second's two full blocks


def test_a_client_that_goes_while_tokens_come_has_those_that_came() -> None:
    """Tokens at 22,720 and 23,270; it leaves at 23,300."""
    (story,) = play(cluster(), ask(0, 0, 20, 10, patience_ns=23_300))
    assert (story.token_times_ns, story.outcome, story.http_status) == ([22_720, 23_270], "cancelled", 200)
    assert times(story, "decode") == [("decode", 22_712, 23_300)]


def test_the_servers_own_limit() -> None:
    """Nothing came within 15,000 ns."""
    (story,) = play(cluster(timeout_ns=15_000), ask(0, 0, 20))
    assert (story.outcome, story.end_ns, story.http_status) == ("timed_out", 15_000, 504)


def test_what_cannot_fit_is_refused_and_what_is_too_much_is_rejected() -> None:
    """1,100 tokens are 110 blocks of 100; the second open request is one too many."""
    stories = play(cluster(most_open=1), ask(0, 0, 20), ask(1, 5, 20), ask(2, 1_000_000, 1_100))
    assert [(story.outcome, story.http_status) for story in stories] == [
        ("ok", 200),
        ("rejected", 503),
        ("invalid", 400),
    ]
    assert times(stories[1]) == [("container", 5, 15)]


def test_leaked_state_stays_until_the_lease_ends() -> None:
    """Room for one prompt: the second begins when the first one's lease ends, not when it was pulled."""
    leak = [(0, LeakHolds("p0"))]
    first, second = play(cluster(replace(P, blocks=3), D, lease_ns=60_000), ask(0, 0, 25), ask(1, 0, 25), causes=leak)
    (hold,) = of(first, "kv_hold")
    assert (hold.end_ns, hold.detail["released_by"]) == (hold.start_ns + 60_000, "timeout")
    assert times(second, "prefill_queue") == [("prefill_queue", 55, hold.end_ns)]


def test_a_restart_of_p_begins_again_elsewhere() -> None:
    """The prompt was under way: the retry's prompt work is recompute, the answer a fallback."""
    both = cluster(P, replace(P, name="p1"), D)
    (story,) = play(both, ask(0, 0, 20), causes=[(10_000, Restart("p0", down_ns=5_000))])
    assert [(d.worker, d.attempt, d.start_ns, d.end_ns, d.failed) for d in of(story, "prefill", "recompute")] == [
        ("p0", 0, 35, 10_000, "prefill worker p0 restarted"),
        ("p1", 1, 11_025, 31_125, ""),
    ]
    assert (story.outcome, story.attempts, story.prefill_worker) == ("ok_fallback", 2, "p1")


def test_a_restart_of_p_loses_what_d_has_not_read() -> None:
    """The pull is under way: it fails, and D computes the prompt."""
    (story,) = play(cluster(), ask(0, 0, 20), causes=[(21_000, Restart("p0", down_ns=5_000))])
    (pull,) = of(story, "handoff")
    assert (pull.end_ns, pull.detail["result"]) == (21_000, "transport_error")
    assert times(story, "recompute") == [("recompute", 21_000, 61_100)]
    assert of(story, "kv_hold")[0].detail["released_by"] == "eviction"


def test_a_restart_of_d_moves_the_request_with_what_it_said() -> None:
    """Two of ten tokens are out: the second attempt has the prompt and two tokens more, and says the other eight."""
    both = cluster(P, D, replace(D, name="d1"))
    (story,) = play(both, ask(0, 0, 20, 10), causes=[(23_300, Restart("d0", down_ns=5_000))])
    assert story.token_times_ns[:2] == [22_720, 23_270]
    assert (len(story.token_times_ns), story.attempts, story.outcome) == (10, 2, "ok_fallback")
    (again,) = of(story, "recompute")
    assert (again.detail["prompt_tokens"], again.detail["cached_tokens"]) == (22, 20)
    assert story.decode_worker == "d1"
    assert [d.worker for d in of(story, "decode")] == ["d0", "d1"]


def test_no_worker_left_is_a_failed_route() -> None:
    """The only P is drained."""
    (story,) = play(cluster(), ask(0, 1_000, 20), causes=[(0, Drain(("p0",)))])
    assert (story.outcome, story.error, of(story, "route")[0].failed) == ("failed_route",) + ("no worker is ready",) * 2


def test_attempts_run_out() -> None:
    """One attempt alone is allowed."""
    (story,) = play(cluster(most_attempts=1), ask(0, 0, 20), causes=[(10_000, Restart("p0"))])
    assert (story.outcome, story.attempts, story.end_ns) == ("failed_prefill", 1, 11_000)


def test_aggregated_has_its_first_token_from_the_prompt() -> None:
    """No handoff, no first step: 20,135 and the way back."""
    (story,) = play(cluster(Worker("w0", "aggregated", "host", tp=1, blocks=100), mode="aggregated"), ask(0, 0, 20, 3))
    assert times(story) == [
        ("container", 0, 21_243),
        ("route", 10, 30),
        ("prefill", 35, 20_135),
        ("decode", 20_135, 21_235),
    ]
    assert story.token_times_ns == [20_143, 20_693, 21_243]
    assert (story.prefill_worker, story.decode_worker, story.choices[0].stage) == ("w0", "w0", "aggregated")


def test_a_short_prompt_is_computed_on_d() -> None:
    """20 tokens at 2,000 ns and a step of 100; P is not asked."""
    (story,) = play(cluster(prefill_on_decode_below=21), ask(0, 0, 20))
    assert times(story, "prefill", "first_token") == [("prefill", 35, 40_135), ("first_token", 40_135, 40_685)]
    assert (story.mode, story.prefill_worker, story.cached_tokens) == ("prefill_on_decode", None, None)


def test_several_state_kinds_and_ranks() -> None:
    """Ranks share the bytes of each kind; together they cover the transfer."""
    shape = cluster(P, replace(D, tp=3))
    shape = replace(shape, costs=replace(shape.costs, state_bytes=(("mamba_state", 100),)))
    (story,) = play(shape, ask(0, 0, 20))
    ranks = of(story, "handoff")
    assert [d.rank for d in ranks] == ["0", "1", "2"]
    assert (min(d.start_ns for d in ranks), max(d.end_ns for d in ranks)) == (20_155, 20_155 + 2_100 + 7)
    assert [d.detail["states"] for d in ranks] == [["kv", "mamba_state"]] * 3
    assert [sum(d.detail["state_bytes"][kind] for d in ranks) for kind in (0, 1)] == [2_000, 100]
    assert sum(d.detail["bytes"] for d in ranks) == 2_100


def test_the_router_decides_one_at_a_time() -> None:
    """Two at once: the second waits 20 ns in the router."""
    _, second = play(cluster(), ask(0, 0, 20), ask(1, 0, 20))
    assert times(second, "router_queue", "route")[:2] == [("router_queue", 10, 30), ("route", 30, 50)]


def test_what_is_open_at_the_end_is_told_as_far_as_it_came() -> None:
    """Stopped in the middle of the transfer."""
    (story,) = play(cluster(), ask(0, 0, 20), until_ns=21_000)
    assert (story.outcome, story.end_ns, story.first_token_ns) == ("in_flight", None, None)
    assert [stage for stage, _, _ in times(story)] == ["route", "prefill", "route"]
