"""LMCache's sessions inside requests: joined by id, adding tokens and evidence but no time."""

import gzip
from pathlib import Path

import pytest

from pdtrace.assemble import derive
from pdtrace.otlp.decode import decode_traces

CAPTURE = Path(__file__).parents[4] / "shared" / "captures" / "vllm-0.32" / "agg_lmcache"


@pytest.fixture(scope="module")
def spans():
    if not CAPTURE.is_dir():
        pytest.skip(f"the recorded LMCache capture is not beside this checkout: {CAPTURE}")
    with gzip.open(CAPTURE / "traces.otlp.jsonl.gz", "rb") as lines:
        batches = [
            decode_traces(line, encoding="json", received_ns=1_800_000_000_000_000_000, where="") for line in lines
        ]
    return [span for batch in batches for span in batch.spans]


def test_sessions_join_their_engines_request_and_change_no_section(spans):
    with_cache = {r.request_id: r for r in derive(spans, [])}
    without = {r.request_id: r for r in derive([s for s in spans if not s.scope.startswith("lmcache")], [])}
    assert len(without) == 36
    assert len(with_cache) == 41
    for name, alone in without.items():
        joined = with_cache[name]
        assert (joined.sections, joined.ttft_ns, joined.t0_ns) == (alone.sections, alone.ttft_ns, alone.t0_ns)
        assert (joined.outcome, joined.mode) == ("ok", "aggregated")
        assert (joined.stitched_by, len(joined.trace_ids)) == ("request_id", 2)
        assert alone.cached_tokens is None
        assert joined.cached_tokens in (0, 320, 384)
        assert {"cached_tokens_external", "lmcache_lookup"} <= {e.name for e in joined.evidence}


def test_a_session_without_an_engines_span_is_a_request_of_which_nothing_more_is_known(spans):
    # Two unsampled and three aborted requests: the cache saw them, vLLM exported nothing.
    engines = {r.request_id for r in derive([s for s in spans if s.name == "llm_request"], [])}
    lone = [r for r in derive(spans, []) if r.request_id not in engines]
    assert {r.request_id for r in lone} == {f"cmpl-cli-4-00{n}" for n in ("12", "16", "25", "33", "38")}
    assert {(r.outcome, r.ttft_ns, r.mode) for r in lone} == {("unknown", None, "unknown")}
