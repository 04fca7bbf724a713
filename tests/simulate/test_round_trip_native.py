"""Simulated clusters told through pdtrace's own instrumentation: everything comes back, to the nanosecond."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pdtrace.model import Batch
from pdtrace.simulate import truth
from pdtrace.simulate.arrivals import Lengths
from pdtrace.simulate.causes import Cause, FailTransfers, Restart
from pdtrace.simulate.scenarios import SCENARIOS, Run, ready
from pdtrace.simulate.story import ClusterFacts, HostFacts, Story
from tests.simulate.telling import Row, batch_of, read_back, tell

REQUESTS = 80
SEEDS = (1, 2)
STEADY = [name for name in SCENARIOS if name != "clock_skew"]


@cache
def play(scenario: str, seed: int, cause: Cause | None = None, **policy: Any) -> tuple[Run, list[Story]]:
    shape = SCENARIOS[scenario]
    cluster = replace(shape.cluster, policy=replace(shape.cluster.policy, **policy))
    workload = replace(shape.workload, output_tokens=Lengths(20.0, 0.5, 2, 60), cancel_share=0.05, invalid_share=0.02)
    causes = shape.causes if cause is None else (cause,)
    shape = replace(shape, cluster=cluster, workload=workload, causes=causes)
    run = ready(shape, seed=seed, requests=REQUESTS, run=f"{scenario}-{seed}")
    return run, list(run.simulation.run())


def by_request(rows: list[Row]) -> dict[str, Row]:
    named = {row["request_id"]: row for row in rows}
    assert len(named) == len(rows)
    return named


def check(stories: list[Story], facts: ClusterFacts) -> None:
    """Everything the truth says, in everything that comes back."""
    rows = by_request(read_back(batch_of(tell("native", stories, facts))))
    assert rows.keys() == {story.request_id for story in stories}
    assert Counter(row["outcome"] for row in rows.values()) == Counter(story.outcome for story in stories)
    for story in stories:
        row, right = rows[story.request_id], truth.answers(story)
        for name in (
            "outcome", "model", "run", "ttft_ns", "prefill_worker", "decode_worker", "input_tokens", "output_tokens",
            "cached_tokens", "attempts", "end_ns", "http_status",
        ):  # fmt: skip
            if name.endswith("_worker") and all(doing.worker != right[name] for doing in story.doings):
                assert row[name] is None  # chosen, and never reached: nobody but the router's decision names it
                continue
            assert row[name] == right[name], (name, story)
        assert (row["error"] or "") == story.error or row["outcome"].startswith("ok")
        assert row["token_times_ns"] == story.token_times_ns
        if story.first_token_ns is not None:
            assert row["mode"] == story.mode, story
            assert row["window"] == right["window"]
            assert [tuple(section) for section in row["section_list"]] == right["sections"], story
            assert row["hidden"] == right["hidden"], story
            assert row["saving"] == right["saving"], story
        else:
            assert row["section_list"] == []
            assert [tuple(section) for section in row["section_list_to_end"]] == right["sections_to_end"], story
        assert not {"clock_shifted", "clock_conflict"} & set(row["warnings"]), story


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scenario", STEADY)
def test_every_scenario_comes_back(scenario: str, seed: int) -> None:
    run, stories = play(scenario, seed)
    check(stories, run.simulation.facts)


TROUBLES: dict[str, tuple[Cause | None, dict[str, Any]]] = {
    "overlapped": (None, {"mode": "overlapped"}),
    "overlapped, chunk by chunk": (None, {"mode": "overlapped", "streaming": "chunked"}),
    "overlapped, layer by layer": (None, {"mode": "overlapped", "streaming": "layerwise"}),
    "prompts on D": (None, {"prefill_on_decode_below": 500}),
    "P dies": (Restart("p0"), {"mode": "overlapped"}),
    "D dies": (Restart("d1"), {}),
    "D dies and nobody tries again": (Restart("d0"), {"most_attempts": 1}),
    "transfers fail": (FailTransfers(0.4), {"on_lost_state": "fail"}),
    "transfers fail, overlapped": (FailTransfers(0.4), {"mode": "overlapped"}),
    "server's limit": (None, {"timeout_ns": 400_000_000}),
    "too many": (None, {"most_open": 15}),
}


@pytest.mark.parametrize("trouble", list(TROUBLES))
def test_every_policy_comes_back(trouble: str) -> None:
    cause, policy = TROUBLES[trouble]
    run, stories = play("healthy", 4, cause, **policy)
    check(stories, run.simulation.facts)


def test_in_any_order_and_twice() -> None:
    run, stories = play("p_restart", 1)
    batch = batch_of(tell("native", stories, run.simulation.facts))
    expected = read_back(Batch(spans=list(batch.spans)))
    shuffle = random.Random(7)
    spans = batch.spans + shuffle.sample(batch.spans, len(batch.spans) // 3)
    shuffle.shuffle(spans)
    assert read_back(Batch(spans=spans)) == expected


# ----------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("mode", ["sequential", "overlapped"])
@pytest.mark.parametrize("offset_ms", [-300.0, -5.0, -0.2, 0.05, 0.2, 5.0, 300.0])
def test_a_clock_that_is_off_is_bounded(offset_ms: float, mode: str) -> None:
    """The true offset lies in every interval that is reported; where all shifts are the true ones, all sections are."""
    offset_ns = round(offset_ms * 1e6)
    _, stories = play("healthy", 5, mode=mode)
    facts = skewed(play("healthy", 5, mode=mode)[0].simulation.facts, {"node-0": HostFacts(offset_ns, 0.0, 0)})
    rows = by_request(read_back(batch_of(tell("native", stories, facts))))
    assert rows.keys() == {story.request_id for story in stories}
    moved = 0
    for story in stories:
        row, right = rows[story.request_id], truth.answers(story)
        assert row["ttft_ns"] == right["ttft_ns"]  # both ends are the front end's stamps
        assert row["outcome"] == story.outcome
        shifts = {"host:node-0": -offset_ns}
        for offset in row["offsets"]:
            true_ns = shifts.get(offset["clock"], 0)
            assert offset["low_ns"] is None or offset["low_ns"] <= true_ns, (story, offset)
            assert offset["high_ns"] is None or true_ns <= offset["high_ns"], (story, offset)
            if offset["applied_ns"]:
                moved += 1
                assert "clock_shifted" in row["warnings"]
        if all(offset["applied_ns"] == shifts.get(offset["clock"], 0) for offset in row["offsets"]):
            pieces = row["section_list"] or row["section_list_to_end"]
            assert [tuple(piece) for piece in pieces] == (right["sections"] or right["sections_to_end"]), story
        elif row["sections"] != right.get("exposed", row["sections"]):
            # Not the truth, and not silent about it: the interval is wider than a point.
            assert any(
                o["low_ns"] is None or o["high_ns"] is None or o["low_ns"] < o["high_ns"] for o in row["offsets"]
            )
    assert moved or abs(offset_ms) < 1 or offset_ms > 0


def skewed(facts: ClusterFacts, hosts: dict[str, HostFacts]) -> ClusterFacts:
    return replace(facts, hosts={**facts.hosts, **hosts})


@pytest.mark.parametrize("seed", SEEDS)
def test_a_clock_that_drifts_is_bounded(seed: int) -> None:
    run, stories = play("clock_skew", seed)
    facts = run.simulation.facts
    rows = by_request(read_back(batch_of(tell("native", stories, facts))))
    assert rows.keys() == {story.request_id for story in stories}
    for story in stories:
        row = rows[story.request_id]
        assert row["ttft_ns"] == truth.answers(story)["ttft_ns"]
        assert row["outcome"] == story.outcome
        last_ns = max(doing.end_ns for doing in story.doings)
        for offset in row["offsets"]:
            host = offset["clock"].removeprefix("host:")
            # While the request lasted the offset went from one of these to the other.
            true = sorted(at - facts.stamp(host, at) for at in (story.arrival_ns, last_ns))
            assert offset["low_ns"] is None or offset["low_ns"] <= true[1], (story, offset)
            assert offset["high_ns"] is None or true[0] <= offset["high_ns"], (story, offset)
