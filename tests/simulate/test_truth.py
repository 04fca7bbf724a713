"""The ground truth: the brute-force rules by hand and against the service's own, and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.charge.rule import CODE_OF_STAGE, Activities, charge
from pdtrace.charge.whatif import savings as service_savings
from pdtrace.simulate import reference
from pdtrace.simulate.reference import PRECEDENCE, hidden, savings, sections, totals
from pdtrace.simulate.scenarios import SCENARIOS, ready
from pdtrace.simulate.truth import TruthFile, answers, ttfts_without_cause
from pdtrace.stages import STAGES

EXAMPLE = [("container", 0, 120), ("prefill", 5, 100), ("handoff", 60, 110), ("first_token", 110, 120)]


def test_the_definitions_example() -> None:
    """Front end 0 - 120, prefill 5 - 100, transfer 60 - 110, first step 110 - 120."""
    charged = sections(0, 120, EXAMPLE)
    assert charged == [("ingress", 0, 5), ("prefill", 5, 100), ("handoff", 100, 110), ("first_token", 110, 120)]
    assert hidden(0, 120, EXAMPLE, charged) == {"handoff": 40}
    assert savings(0, 120, EXAMPLE, charged) == {"prefill": 55, "handoff": 10, "first_token": 10, "ingress": 5}


def test_containers_and_nobody() -> None:
    """
    front end   10 - 90
      route     20 - 30
      prefill          40 - 50
    nobody  0 - 10                  90 - 100
    """
    charged = sections(0, 100, [("container", 10, 90), ("route", 20, 30), ("prefill", 40, 50)])
    assert charged == [
        ("unattributed", 0, 10),
        ("ingress", 10, 20),
        ("route", 20, 30),
        ("relay", 30, 40),
        ("prefill", 40, 50),
        ("egress", 50, 90),
        ("unattributed", 90, 100),
    ]
    assert sections(0, 100, [("container", 10, 90)]) == [("unattributed", 0, 100)]
    assert savings(0, 100, [("container", 10, 90)], [("unattributed", 0, 100)]) == {"unattributed": None}


def test_chained_savings_are_the_charged_time() -> None:
    doings = [("container", 0, 100), ("prefill_queue", 10, 30), ("prefill", 30, 60), ("decode_queue", 70, 90)]
    charged = sections(0, 100, doings)
    assert savings(0, 100, doings, charged) == totals(charged)


intervals = st.tuples(st.sampled_from((*PRECEDENCE, "container")), st.integers(-5, 60), st.integers(0, 30)).map(
    lambda each: (each[0], each[1], each[1] + each[2])
)


@settings(max_examples=400, deadline=None)
@given(st.lists(intervals, max_size=9), st.integers(0, 10), st.integers(1, 50))
def test_two_readings_of_the_definitions_agree(doings: list[tuple[str, int, int]], t0: int, length: int) -> None:
    """What is written here for being plain, and what the service does for being fast, give the same."""
    t1 = t0 + length
    charged = sections(t0, t1, doings)
    answer = charge(
        np.array([t0]),
        np.array([t1]),
        Activities(
            np.array([0, len(doings)]),
            np.array([CODE_OF_STAGE[stage] for stage, _, _ in doings], dtype=np.int8),
            np.array([start for _, start, _ in doings], dtype=np.int64),
            np.array([end for _, _, end in doings], dtype=np.int64),
        ),
    )
    theirs = [
        (STAGES[stage], int(start), int(end))
        for stage, start, end in zip(answer.stage, answer.start_ns, answer.end_ns, strict=True)
    ]
    assert theirs == charged
    assert {STAGES[i]: int(ns) for i, ns in enumerate(answer.hidden_ns[0]) if ns} == hidden(t0, t1, doings, charged)
    assert service_savings(t0, t1, charged, doings) == savings(t0, t1, doings, charged)


def _written(tmp_path: Path, name: str, seed: int, requests: int | None = None) -> dict[str, Any]:
    without = ttfts_without_cause(ready(SCENARIOS[name], seed=seed, requests=requests, with_cause=False))
    run = ready(SCENARIOS[name], seed=seed, requests=requests, run="night")
    with TruthFile(tmp_path / "ground_truth.json", run, {"dialect": "native"}, without) as truth:
        for story in run.simulation.run():
            truth.add(story)
    written: dict[str, Any] = json.loads((tmp_path / "ground_truth.json").read_text())
    return written


def test_the_file_has_everything(tmp_path: Path) -> None:
    written = _written(tmp_path, "slow_link", 1)
    assert (written["scenario"], written["seed"], written["dialect"]) == ("slow_link", 1, "native")
    assert (written["stage"], written["affected"]) == ("handoff", "node-0>node-2")
    assert written["onset_ns"] == written["start_ns"] + 10 * 10**9  # 200 of 400 requests at 20 a second
    assert written["clocks"]["node-0"] == {
        "offset_ns": 0,
        "drift_ppm": 0.0,
        "epoch_ns": written["clocks"]["node-0"]["epoch_ns"],
    }
    assert written["workers"]["d2"]["host"] == "node-2"
    assert written["offered"] == len(written["requests"]) == sum(written["ledger"].values()) == 400
    late = [
        request["ttft_ns"] - request["ttft_without_cause_ns"]
        for request in written["requests"]
        if request["arrival_ns"] >= written["onset_ns"] and request["ttft_ns"] and request["ttft_without_cause_ns"]
    ]
    assert written["fix_saved_ns"] == round(sum(late) / len(late)) > 30 * 10**6
    one = written["requests"][0]
    assert one["request_id"].startswith("night-")
    assert one["ttft_ns"] == sum(end - start for _, start, end in one["sections"]) == sum(one["exposed"].values())
    assert {stage["stage"] for stage in one["stages"]} >= {"route", "prefill", "handoff", "first_token", "decode"}
    choice = one["choices"][0]
    assert len(choice["really_cached_tokens"]) == len(choice["candidates"]) == len(choice["overlap_tokens"])
    after = written["halves"]["after"]
    assert sum(after["mean_sections_ns"].values()) - after["mean_ttft_ns"] in range(-10, 11)  # each mean is rounded


def test_the_fix_of_nothing_saves_nothing(tmp_path: Path) -> None:
    written = _written(tmp_path, "clock_skew", 2, 100)
    assert written["fix_saved_ns"] == 0
    assert written["stage"] is None


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert _written(tmp_path / "a", "p_restart", 7, 120) == _written(tmp_path / "b", "p_restart", 7, 120)
    assert (tmp_path / "a/ground_truth.json").read_bytes() == (tmp_path / "b/ground_truth.json").read_bytes()


def test_no_first_token_has_no_sections() -> None:
    run = ready(SCENARIOS["healthy"], seed=1, requests=400)
    told = [answers(story) for story in run.simulation.run() if story.first_token_ns is None]
    assert told
    for each in told:
        assert (each["ttft_ns"], each["window"], each["sections"]) == (None, None, [])
        assert sum(end - start for _, start, end in each["sections_to_end"]) == each["end_ns"] - each["arrival_ns"]


def test_the_reference_is_no_copy_of_the_service() -> None:
    assert reference.__file__ is not None
    imported = [
        line for line in Path(reference.__file__).read_text().splitlines() if line.startswith(("import", "from"))
    ]
    assert not [line for line in imported if "pdtrace" in line]
