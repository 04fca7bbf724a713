"""The Dynamo dialect on recorded traffic of a real front end, router and mocker workers, against the client's truth."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pdtrace.dialects.dynamo import DynamoDialect

if TYPE_CHECKING:
    from tests.dialects.dynamo.conftest import Capture

MODES = {
    "a-agg-kv-events": "aggregated",
    "b-pd-kv-events": "sequential",
    "b2-pd-kv-events-bootstrap": "overlapped",
    "c-pd-no-kv-events-small-cache": "sequential",
    "d-pd-overload": "sequential",
    "g2-pd-fpm-small-cache-kv-events": "sequential",
    "smoke-http": "sequential",
}
SEQUENTIAL = [name for name, mode in MODES.items() if mode == "sequential"]

Load = Callable[[str], "Capture"]


@pytest.mark.parametrize("name", MODES)
def test_every_client_request_is_found_once(capture: Load, name: str) -> None:
    seen = capture(name)
    assert set(seen.readings()) == set(seen.client)
    assert all(len(reading.edges) == 1 for reading in seen.readings().values())


@pytest.mark.parametrize("name", MODES)
def test_every_span_is_recognised_and_kv_queries_are_noise(capture: Load, name: str) -> None:
    dialect = DynamoDialect()
    for span in capture(name).spans:
        identity = dialect.identify(span)
        assert identity is not None, span.name
        is_query = str(span.attributes.get("endpoint", "")).startswith("worker_kv_query_source_")
        assert (identity.part == "noise") == is_query


@pytest.mark.parametrize("name", [name for name in MODES if name != "smoke-http"])  # 3 requests, client 39 ms late
def test_first_token_is_what_the_client_saw(capture: Load, name: str) -> None:
    seen = capture(name)
    late_ms = []
    for alias, reading in seen.readings().items():
        row = seen.client[alias]
        first_ns = reading.edges[0].first_token_ns
        if row["t_first_content_us"] is not None and first_ns is not None:
            late_ms.append((row["t_send_unix_ns"] + row["t_first_content_us"] * 1000 - first_ns) / 1e6)
    assert len(late_ms) > 45
    assert 0 < statistics.median(late_ms) < 1  # within about 1 ms of the client
    assert min(late_ms) > 0  # the client never saw a token before the front end sent it


@pytest.mark.parametrize("name", MODES)
def test_nothing_happens_before_its_cause(capture: Load, name: str) -> None:
    # All processes ran on one machine: every causal edge must hold as it stands, without any clock shift.
    edges = [edge for reading in capture(name).readings().values() for edge in reading.before]
    assert edges
    assert [edge.why for edge in edges if edge.b_ns < edge.a_ns] == []


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_sequential_span_ttft_is_nvext_plus_estimate(capture: Load, name: str) -> None:
    residuals_ms = []
    for reading in capture(name).readings().values():
        claims = {claim.name: claim.ttft_ns for claim in reading.ttft_claims}
        if {"frontend", "estimate"} <= set(claims):
            residuals_ms.append(abs(claims["frontend"] - claims["estimate"]) / 1e6)
            assert claims["dynamo_nvext"] < claims["frontend"]  # P's first token, not the user's
    assert residuals_ms
    assert statistics.median(residuals_ms) < 0.1


def test_bootstrap_estimate_is_unknown_and_never_a_claim(capture: Load) -> None:
    readings = capture("b2-pd-kv-events-bootstrap").readings().values()
    assert not [reading for reading in readings if any(claim.name == "estimate" for claim in reading.ttft_claims)]
    estimates = [e.value for r in readings for e in r.evidence if e.name == "kv_transfer_estimated"]
    assert len(estimates) == 101
    assert set(estimates) == {None}
    short_ms = []
    for reading in readings:
        claims = {claim.name: claim.ttft_ns for claim in reading.ttft_claims}
        if {"frontend", "dynamo_nvext"} <= set(claims):
            short_ms.append((claims["frontend"] - claims["dynamo_nvext"]) / 1e6)
    assert 60 < statistics.median(short_ms) < 90  # nvext is short by 75 ms (median)


@pytest.mark.parametrize(("name", "mode"), MODES.items())
def test_mode_is_the_scenario_s(capture: Load, name: str, mode: str) -> None:
    modes = Counter(r.facts["mode"] for r in capture(name).readings().values() if "mode" in r.facts)
    assert set(modes) == {mode}


@pytest.mark.parametrize("name", ["a-agg-kv-events", "b-pd-kv-events", "c-pd-no-kv-events-small-cache"])
def test_how_the_110_requests_of_the_base_profile_ended(capture: Load, name: str) -> None:
    facts = [reading.facts for reading in capture(name).readings().values()]
    assert len(facts) == 110
    assert sum("answered" in each for each in facts) == 100
    assert sum("client_cancelled_ns" in each for each in facts) == 4
    assert Counter(each.get("http_status") for each in facts if each.get("http_status") in (400, 404)) == {
        400: 4,
        404: 1,
    }
    assert sum(each.get("over_long_prompt", False) for each in facts) == 1


def test_bootstrap_hides_why_the_over_long_prompt_failed(capture: Load) -> None:
    # Seen in b2: the stream only says "All output transmitters closed". The reason is not guessed.
    reading = capture("b2-pd-kv-events-bootstrap").readings()["base-3-0110"]
    assert "over_long_prompt" not in reading.facts
    assert [(f.stage, f.text) for f in reading.failures] == [("decode", "All output transmitters closed")]


def test_overload_is_529_and_seven_prefills_were_wasted(capture: Load) -> None:
    readings = capture("d-pd-overload").readings()
    assert len(readings) == 124
    rejected = {alias: r for alias, r in readings.items() if r.facts.get("http_status") == 529}
    assert len(rejected) == 68
    late = [r for r in rejected.values() if r.facts["prefill_finished"]]
    assert len(late) == 7
    assert all(r.legs and r.legs[0].role == "prefill" for r in late)
    assert not any(r.legs for r in rejected.values() if not r.facts["prefill_finished"])
    by = Counter(e.value for r in rejected.values() for e in r.evidence if e.name == "rejected_by")
    assert by == {"prefill": 61, "decode": 7}
    assert all("input_tokens" not in r.facts for r in rejected.values())  # "0" on the span means: not counted
    assert all(r.edges[0].first_token_ns is None for r in rejected.values())


def test_workers_and_tokens_are_the_client_s(capture: Load) -> None:
    seen = capture("b-pd-kv-events")
    checked = 0
    for alias, reading in seen.readings().items():
        row = seen.client[alias]
        if row["nvext"] and row["usage"]:
            said = row["nvext"][0]["worker_id"]
            assert reading.facts["prefill_worker"] == str(said["prefill_worker_id"])
            assert reading.facts["decode_worker"] == str(said["decode_worker_id"])
            assert reading.facts["input_tokens"] == row["usage"]["prompt_tokens"]
            assert reading.facts["output_tokens"] == row["usage"]["completion_tokens"]
            assert reading.facts["stream"] == row["stream"]
            checked += 1
    assert checked == 100


def test_no_true_prefix_hit_is_claimed(capture: Load) -> None:
    readings = capture("b-pd-kv-events").readings().values()
    assert not any("cached_tokens" in reading.facts for reading in readings)
    predicted = [reading.facts.get("predicted_cached_tokens") for reading in readings]
    assert sum(value is not None for value in predicted) == 103
    assert max(value for value in predicted if value is not None) >= 1024


def test_the_request_trace_changes_neither_window_nor_activities(capture: Load) -> None:
    seen = capture("b-pd-kv-events")
    without = seen.readings(with_records=False)
    for alias, reading in seen.readings().items():
        assert repr(reading.edges) == repr(without[alias].edges)
        assert [(a.stage, a.start_ns, a.end_ns) for a in reading.activities] == [
            (a.stage, a.start_ns, a.end_ns) for a in without[alias].activities
        ]
        assert reading.facts.get("mode") == without[alias].facts.get("mode")
