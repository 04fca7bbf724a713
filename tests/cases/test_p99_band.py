"""Case p99-stack, from spans to the answer of the ttft question: percentiles of stages are never stacked."""

from __future__ import annotations

from pdtrace.model import Batch
from pdtrace.pipeline import Pipeline
from pdtrace.reader.contract import Filters
from pdtrace.reader.local import LocalReader
from pdtrace.store.duckdb import DuckDBStore
from tests.drawing import ms, spans


def test_the_p99_band_is_the_mean_path_of_its_requests() -> None:
    """100 requests: one with prefill 1000 and handoff 10, one with 100 and 910, the others with 100 and 10."""
    store = DuckDBStore(":memory:")
    pipeline = Pipeline(store)
    for number, (prefill, handoff) in enumerate([(1000, 10), (100, 910)] + [(100, 10)] * 98):
        end = prefill + handoff
        drawing = f"""
            req        0 - {end}
              prefill  0 - {prefill}       @P0
              handoff  {prefill} - {end}   @P0>D0
        """
        first_token = {"pdtrace.first_token_ns": spans(drawing)[0].start_ns + ms(end)}
        drawn = spans(drawing, trace=f"t{number}", request_id=f"r{number}", **first_token)
        pipeline.add(Batch(spans=drawn))
    pipeline.derive()
    (group,) = LocalReader(store).ttft([], Filters())
    store.close()
    assert group["requests"] == 100
    assert group["p99_ns"] == ms(1010)  # 1010 ms, not the 109 + 19 = 128 ms that stacked percentiles of stages say
    assert group["p99_requests"] == 2
    assert group["p99_mean_ns"] == ms(1010)
    assert group["p99_sections"] == {"prefill": ms(550), "handoff": ms(460)}
    assert group["sections"] == {"prefill": ms(109), "handoff": ms(19)}
    assert group["mean_ns"] == ms(128)
