"""Simulated clusters told in the words of real engines: never a wrong stage, only coarser or unknown ones.

What every dialect can and cannot tell is written down here: which outcomes it may confuse, on whose first token its TTFT
ends, and to how many ns.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pdtrace.model import Batch
from pdtrace.simulate.arrivals import Lengths
from pdtrace.simulate.causes import Cause, FailTransfers, Restart
from pdtrace.simulate.cluster import Policy, Worker
from pdtrace.simulate.emit import MemorySink, make_emitter
from pdtrace.simulate.emit.sglang import SglangEmitter
from pdtrace.simulate.emit.visits import Visit, visits_of
from pdtrace.simulate.emit.vllm import VllmEmitter
from pdtrace.simulate.scenarios import SCENARIOS, ready
from pdtrace.simulate.story import ClusterFacts, Story
from tests.simulate.telling import UNKNOWN, Piece, Row, batch_of, read_back, true_pieces, wrongs

REQUESTS = 60
SEEDS = (1, 2)
MODE = {"dynamo": "sequential", "vllm": "sequential", "sglang": "overlapped"}
CASES = [(dialect, scenario, seed) for dialect in MODE for scenario in SCENARIOS for seed in SEEDS]
WORD = {"dynamo": "aliases", "vllm": "request_id", "sglang": "request_id"}


# ---------------------------------------------------------------------------------- what each dialect can tell

#: True outcome -> outcomes that a dialect may take it for. All others must come back as they were.
CONFUSED: dict[str, dict[str, set[str]]] = {
    # D's load of the state is inside its visit. A recompute on D is inside it too.
    "dynamo": {
        "failed_handoff": {"failed_decode"},
        "ok_fallback": {"ok_fallback", "ok"},
        "failed_prefill": {"failed_prefill"},
        "in_flight": {"unknown"},
    },
    # An aborted request has no engine span, and the router's status left before the answer. Nothing tells of a retry.
    "vllm": {
        "cancelled": {"cancelled", "unknown"},
        "timed_out": {"timed_out", "unknown"},
        "ok_fallback": {"ok_fallback", "ok"},
        "failed_prefill": {"failed_prefill", "failed"},
        "failed_decode": {"failed_decode", "failed", "unknown"},
        "in_flight": {"unknown"},
    },
    # A server that gives up closes the connection as a client does. Any leg's failure is a 500 of the gateway.
    "sglang": {
        "timed_out": {"timed_out", "cancelled"},
        "ok_fallback": {"ok_fallback", "ok"},
        "failed_prefill": {"failed_prefill", "failed"},
        "failed_decode": {"failed_decode", "failed"} | {"ok"},  # D's own span would be the only witness
        "in_flight": {"unknown"},
    },
}

#: What is still wrong, each with a strict xfail in test_round_trip_faults:
#: dialect -> (stage answered, true stage).
KNOWN_FAULTS: dict[str, set[tuple[str, str]]] = {
    "dynamo": set(),
    # D's time in the model is called first_token whatever D computed in it.
    "vllm": {
        ("first_token", "recompute"),
        ("first_token", "decode_queue"),
        ("prefill", "recompute"),
        ("prefill", "decode_queue"),
        ("prefill", "first_token"),
    },
    # The gateway's time before it sends is called route. A second attempt is not known as such where the first one's
    # engines said nothing.
    "sglang": {("route", "ingress"), ("route", "router_queue"), ("prefill", "recompute")},
}


def first_token_ns(dialect: str, story: Story, visits: list[Visit]) -> int | None:
    """The first token that a dialect sees: Dynamo's at the front end, the others' as it leaves D.

    None: none is reported. Of a worker that was lost nothing is known, a first token included.
    """
    if dialect == "dynamo":
        return story.first_token_ns
    for visit in visits:
        # One worker that does both makes the first token with the end of its prefill.
        stages = ("prefill", "recompute") if visit.role == "aggregated" else ("first_token",)
        made = [doing for doing in visit.all(*stages) if not doing.failed]
        silent = visit.lost or visit.open or (dialect == "vllm" and visit.cut)
        unfinished = visit.cut and bool(made) and made[0].end_ns == visit.end_ns
        if made and not silent and not unfinished:
            return made[0].end_ns
    return None


#: Dynamo prints its TTFT in ms with two decimals; the others give a float of seconds, which holds ns.
TTFT_TOLERANCE_NS = {"dynamo": 5_001, "vllm": 1, "sglang": 1}


# ------------------------------------------------------------------------------------------------- the round trip


@cache
def play(
    scenario: str, seed: int, mode: str, cause: Cause | None = None, **policy: Any
) -> tuple[list[Story], ClusterFacts]:
    """The stories of a scenario in the mode that a dialect's system works in; short answers: they say nothing here."""
    shape = SCENARIOS[scenario]
    cluster = replace(shape.cluster, policy=replace(shape.cluster.policy, mode=mode, **policy))
    workload = replace(shape.workload, output_tokens=Lengths(12.0, 0.5, 2, 40), cancel_share=0.05, invalid_share=0.02)
    if shape.drift_ppm:  # that clocks drift is the native test's matter: here sections are compared in true time
        shape = replace(shape, drift_ppm=())
    causes = shape.causes if cause is None else (cause,)
    run = ready(
        replace(shape, cluster=cluster, workload=workload, causes=causes), seed=seed, requests=REQUESTS, run=scenario
    )
    return list(run.simulation.run()), run.simulation.facts


def told(dialect: str, stories: list[Story], facts: ClusterFacts, seed: int) -> Batch:
    sink = MemorySink()
    # Every token's slice in one scenario is enough: the store would hold little else.
    whole = dialect != "sglang" or stories[0].run == "healthy"
    emitter = (
        make_emitter(dialect, sink, facts, seed) if whole else SglangEmitter(sink, facts, seed, token_slices=False)
    )
    for story in stories:
        emitter.emit(story)
    emitter.close()
    return batch_of(sink)


def by_request(rows: list[Row]) -> dict[str, Row]:
    """Rows by the caller's id, which every dialect's edge knows; a request that comes twice is a fault."""
    named: dict[str, Row] = {}
    for row in rows:
        for name in {row["request_id"], *row["aliases"]}:
            assert name not in named, f"{name} names two requests"
            named[name] = row
    return named


@pytest.mark.parametrize(("dialect", "scenario", "seed"), CASES)
def test_never_a_wrong_stage(dialect: str, scenario: str, seed: int) -> None:
    check(dialect, *play(scenario, seed, MODE[dialect]), seed)


def check(dialect: str, stories: list[Story], facts: ClusterFacts, seed: int) -> None:
    """Requests, outcomes, TTFTs and every instant of what comes back."""
    rows = read_back(told(dialect, stories, facts, seed))
    named = by_request(rows)
    assert len(rows) == len(stories)
    assert {story.request_id for story in stories} <= named.keys()
    for story in stories:
        row, visits = named[story.request_id], visits_of(story, facts)
        allowed = CONFUSED[dialect].get(story.outcome, {story.outcome})
        assert row["outcome"] in allowed, (story, row["outcome"], row["error"])
        token_ns = first_token_ns(dialect, story, visits)
        if token_ns is None:
            assert row["ttft_ns"] is None, (story, row["ttft_ns"])
        elif not _token_is_a_later_one(dialect, story, visits):
            assert abs(row["ttft_ns"] - (token_ns - story.arrival_ns)) <= TTFT_TOLERANCE_NS[dialect], story
        wrong = {(answered, true) for answered, true, _ in wrongs(story, row, facts)}
        assert wrong <= KNOWN_FAULTS[dialect], (story, row["section_list"], row["warnings"])


def _token_is_a_later_one(dialect: str, story: Story, visits: list[Visit]) -> bool:
    """A D that was lost after its first token took that with it: only the next attempt's is told."""
    return dialect != "dynamo" and any(visit.lost and visit.first("first_token") for visit in visits)


#: What goes wrong where no scenario does: name -> (cause, policy).
TROUBLES: dict[str, tuple[Cause | None, dict[str, Any]]] = {
    "D dies": (Restart("d1"), {}),
    "P dies and nobody tries again": (Restart("p0"), {"most_attempts": 1}),
    "D dies and nobody tries again": (Restart("d0"), {"most_attempts": 1}),
    "transfers fail": (FailTransfers(0.4), {"on_lost_state": "fail"}),
    "too many": (None, {"most_open": 15}),
}


@pytest.mark.parametrize("trouble", list(TROUBLES))
@pytest.mark.parametrize(("dialect", "mode"), [*MODE.items(), ("dynamo", "overlapped")])
def test_never_a_wrong_stage_in_trouble(dialect: str, mode: str, trouble: str) -> None:
    cause, policy = TROUBLES[trouble]
    check(dialect, *play("healthy", 3, mode, cause, **policy), 3)


@pytest.mark.parametrize("dialect", list(MODE))
def test_never_a_wrong_stage_where_one_worker_does_both(dialect: str) -> None:
    shape = SCENARIOS["healthy"]
    workers = tuple(Worker(f"a{number}", "aggregated", f"node-{number}") for number in range(3))
    cluster = replace(shape.cluster, workers=workers, policy=Policy(mode="aggregated"))
    run = ready(replace(shape, cluster=cluster), seed=1, requests=REQUESTS, run="aggregated")
    stories = list(run.simulation.run())
    assert {story.mode for story in stories} == {"aggregated"}
    check(dialect, stories, run.simulation.facts, 1)


@pytest.mark.parametrize("dialect", list(MODE))
def test_what_a_dialect_can_tell_it_does_tell(dialect: str) -> None:
    """Coarser is allowed, silence is not: time in P and D is named as finely as each dialect's blind spots leave it."""
    stories, facts = play("healthy", 1, MODE[dialect])
    named = by_request(read_back(told(dialect, stories, facts, 1)))
    wanted = {
        "dynamo": {"prefill": "prefill_opaque", "prefill_queue": "prefill_opaque", "handoff": "decode_opaque",
                   "decode_queue": "decode_opaque", "first_token": "decode_opaque", "route": "route"},
        "vllm": {"prefill": "prefill", "prefill_queue": "prefill_queue", "handoff": "decode_queue",
                 "decode_queue": "decode_queue", "first_token": "first_token"},
        "sglang": {"prefill": "prefill", "prefill_queue": "prefill_queue", "bootstrap": "bootstrap", "handoff": "handoff",
                   "decode_queue": "decode_queue", "first_token": "first_token", "route": "route"},
    }[dialect]  # fmt: skip
    seen: Counter[tuple[str, str]] = Counter()
    for story in stories:
        if story.outcome != "ok":
            continue
        pieces = [Piece(*piece) for piece in named[story.request_id]["section_list"]]
        for true in true_pieces(story, pieces[-1].end_ns):
            for piece in pieces:
                low, high = max(piece.start_ns, true.start_ns), min(piece.end_ns, true.end_ns)
                if low < high:
                    seen[true.stage, piece.stage] += high - low
    for true_stage, stage in wanted.items():
        assert seen[true_stage, stage] > 0, (true_stage, stage)
        assert {answer for (of, answer) in seen if of == true_stage} == {stage}, (true_stage, seen)
    assert {true for (true, answer) in seen if answer in UNKNOWN} <= {*UNKNOWN, "router_queue", "route"}


@pytest.mark.parametrize("dialect", list(MODE))
def test_in_any_order_and_twice(dialect: str) -> None:
    stories, facts = play("p_restart", 1, MODE[dialect])
    batch = told(dialect, stories, facts, 1)
    expected = read_back(Batch(spans=list(batch.spans), records=list(batch.records)))
    shuffle = random.Random(7)
    spans = batch.spans + shuffle.sample(batch.spans, len(batch.spans) // 3)
    records = batch.records * 2
    shuffle.shuffle(spans)
    shuffle.shuffle(records)
    assert read_back(Batch(spans=spans, records=records)) == expected


@pytest.mark.parametrize("dialect", list(MODE))
def test_the_same_seed_tells_the_same_bytes(dialect: str) -> None:
    stories, facts = play("healthy", 2, MODE[dialect])

    def bodies(seed: int) -> list[Any]:
        sink = MemorySink()
        emitter = make_emitter(dialect, sink, facts, seed)
        for story in stories[:20]:
            emitter.emit(story)
        emitter.close()
        return [sink.bodies, sink.lines]

    assert bodies(3) == bodies(3)
    assert bodies(3) != bodies(4)


def test_a_proxy_without_spans_leaves_the_id_to_join_p_and_d() -> None:
    """vLLM behind a proxy that forwards no context: two traces, no edge; the window is the engines'."""
    stories, facts = play("healthy", 1, "sequential")
    sink = MemorySink()
    emitter = VllmEmitter(sink, facts, 1, router=False)
    for story in stories:
        emitter.emit(story)
    emitter.close()
    rows = {name: row for row in read_back(batch_of(sink)) for name in (row["request_id"], *row["aliases"])}
    answered = [story for story in stories if story.outcome == "ok"]
    assert len(answered) > REQUESTS // 2
    for story in answered:
        row = rows[story.request_id]
        visits = {visit.role: visit for visit in visits_of(story, facts)}
        token_ns = first_token_ns("vllm", story, list(visits.values()))
        assert token_ns is not None
        assert (row["stitched_by"], row["ttft_basis"], row["outcome"]) == ("request_id", "engines", "ok")
        assert abs(row["ttft_ns"] - (token_ns - visits["prefill"].start_ns)) <= 1
        assert (row["prefill_worker"], row["decode_worker"]) == (story.prefill_worker, story.decode_worker)
        assert wrongs(story, row, facts) == []


def test_without_the_senders_only_the_tail_of_a_transfer_is_seen() -> None:
    """SGLang's default trace modules: a transfer that streams during the prefill is hidden but for its end."""
    stories, facts = play("healthy", 1, "overlapped", streaming="layerwise")
    hidden = {}
    for mooncake in (False, True):
        sink = MemorySink()
        emitter = SglangEmitter(sink, facts, 1, mooncake=mooncake, token_slices=False)
        for story in stories:
            emitter.emit(story)
        emitter.close()
        rows = read_back(batch_of(sink))
        hidden[mooncake] = sum(row["hidden"].get("handoff", 0) for row in rows)
        named = {row["request_id"]: row for row in rows}
        for story in stories:
            wrong = {(answered, true) for answered, true, _ in wrongs(story, named[story.request_id], facts)}
            assert wrong <= KNOWN_FAULTS["sglang"]
    assert hidden[False] == 0
    assert hidden[True] > 0
