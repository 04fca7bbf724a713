"""LMCache's sessions as the dialect reads them, on the real capture."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from pdtrace.dialects.contract import Tree
from pdtrace.dialects.lmcache import LmcacheDialect
from pdtrace.dialects.vllm import VllmDialect
from pdtrace.model import Identity, Reading, Span
from pdtrace.otlp.decode import decode_traces

CAPTURE = Path(__file__).parents[4] / "shared" / "captures" / "vllm-0.32" / "agg_lmcache"
LMCACHE, VLLM = LmcacheDialect(), VllmDialect()


@pytest.fixture(scope="module")
def spans():
    if not CAPTURE.is_dir():
        pytest.skip(f"the recorded LMCache capture is not beside this checkout: {CAPTURE}")
    with gzip.open(CAPTURE / "traces.otlp.jsonl.gz", "rb") as lines:
        batches = [
            decode_traces(line, encoding="json", received_ns=1_800_000_000_000_000_000, where="") for line in lines
        ]
    return [span for batch in batches for span in batch.spans]


def read(spans):
    parts = {s.key: LMCACHE.identify(s) or VLLM.identify(s) or Identity("", "inner") for s in spans}
    out = Reading()
    tree = Tree(spans, parts)
    LMCACHE.read([s for s in tree.spans if parts[s.key].dialect == "lmcache"], tree, out)
    return out


def session(hit=320, requested=384, trace_id="1" * 32, **attributes):
    attributes = {
        "session_id": "cmpl-abc-0-0123abcd",
        "hit_tokens": hit,
        "requested_tokens": requested,
        "l1_hit_tokens": hit,
        "l2_hit_tokens": 0,
        **attributes,
    }
    return Span(trace_id, "2" * 16, "", "request", 1, 1000, 2000, "lmcache_mp.server", {}, attributes)


def test_every_engine_request_has_exactly_one_session_by_its_id(spans):
    sessions = Counter(LMCACHE.identify(s).keys for s in spans if s.scope.startswith("lmcache") and s.name == "request")
    engines = [VLLM.identify(s).keys for s in spans if s.name == "llm_request"]
    assert len(engines) == 36
    assert all(sessions[keys] == 1 for keys in engines)
    assert sum(sessions.values()) == 41  # five more: two unsampled and three aborted requests, which vLLM never exports


def test_the_hit_is_what_the_client_was_told_was_cached(spans):
    hits = {}
    for span in spans:
        if span.scope.startswith("lmcache") and span.name == "request":
            facts = read([span]).facts
            hits[facts["request_id"]] = facts["cached_tokens"]
    with gzip.open(CAPTURE / "client.jsonl.gz", "rb") as lines:
        answers = [json.loads(line) for line in lines]
    told = {
        answer["response_id"]: answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        for answer in answers
        if answer.get("usage")
    }
    assert len(told) == 37
    assert {name: hits[name] for name in told} == told
    assert sorted(set(told.values())) == [0, 320, 384]


def test_a_look_up_is_evidence_and_never_an_activity(spans):
    mine = [s for s in spans if s.attributes.get("session_id") == "cmpl-cli-4-0002-0-8baad2ef"]
    assert {s.name for s in mine} == {"request", "mp.lookup_prefetch"}
    out = read(mine)
    assert not (out.activities)
    assert not (out.envelopes)
    assert not (out.legs)
    assert not (out.edges)
    evidence = {e.name: (e.value, e.unit) for e in out.evidence}
    assert evidence == {"cached_tokens_external": (320, "tokens"), "lmcache_lookup": (16_937_472, "ns")}


def test_hits_of_two_engines_are_no_prefix_hit():
    engines = [
        Span(
            "3" * 32,
            digit * 16,
            "",
            "llm_request",
            2,
            1,
            9,
            "vllm.tracing.otel",
            {},
            {"gen_ai.request.id": "cmpl-abc-0"},
        )
        for digit in "45"
    ]
    assert read([session(), engines[0]]).facts["cached_tokens"] == 320
    assert "cached_tokens" not in read([session(), *engines]).facts
    assert "cached_tokens" not in read([session(), session(trace_id="6" * 32)]).facts


def test_an_impossible_hit_is_named(spans):
    assert [w.code for w in read([session(hit=500)]).warnings] == ["impossible_hit"]
    assert not read([session(hit="nonsense")]).evidence


def test_spans_without_a_session_belong_to_their_parents():
    span = session()
    del span.attributes["session_id"]
    assert LMCACHE.identify(span) == Identity("lmcache", "inner")
    span.scope = "another"
    assert LMCACHE.identify(span) is None
