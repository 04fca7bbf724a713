"""The local reader: the conformance suite, and the questions it must refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pdtrace.model import TtftClaim
from pdtrace.reader.cohorts import cohort_parameters
from pdtrace.reader.contract import BadQuestion, Filters, Reader
from pdtrace.reader.local import LocalReader
from pdtrace.store.duckdb import DuckDBStore
from tests.reader.conformance import ReaderConformance
from tests.reader.known import fill
from tests.reader.requests import MS, T0, S, make_request


@pytest.fixture(scope="module")
def known() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    fill(store)
    yield store
    store.close()


class TestLocalReader(ReaderConformance):
    @pytest.fixture
    def reader(self, known: DuckDBStore) -> Reader:
        return LocalReader(known)


@pytest.fixture
def store() -> Iterator[DuckDBStore]:
    store = DuckDBStore(":memory:")
    yield store
    store.close()


def test_wrong_questions_say_what_would_be_right(known: DuckDBStore) -> None:
    reader = LocalReader(known)
    with pytest.raises(BadQuestion, match="cannot order by 'colour'; it can be t0, ttft"):
        reader.requests(Filters(), order_by="colour")
    with pytest.raises(BadQuestion, match="cannot be negative"):
        reader.requests(Filters(limit=-1))
    with pytest.raises(BadQuestion, match="cannot be negative"):
        reader.requests(Filters(), offset=-1)
    with pytest.raises(BadQuestion, match="use 1 or more"):
        reader.live(Filters(), bucket_s=0)
    with pytest.raises(BadQuestion, match="more than 10000 buckets"):
        reader.live(Filters(since_ns=0, until_ns=T0), bucket_s=1)


@pytest.mark.parametrize(
    "name", ["1; DROP TABLE requests", "bucket:0", "bucket:-5", "bucket:", "bucket:1s", "ttft_ns", ""]
)
def test_only_the_listed_dimensions_reach_the_query(name: str) -> None:
    with pytest.raises(BadQuestion, match="it can be prefill_worker"):
        cohort_parameters([name])


def test_a_dimension_counts_once() -> None:
    with pytest.raises(BadQuestion, match="twice"):
        cohort_parameters(["model", "model"])
    with pytest.raises(BadQuestion, match="twice"):
        cohort_parameters(["bucket:5", "bucket:10"])
    parameters, columns = cohort_parameters(["minute", "bucket:5", "link"])
    assert columns == ["minute", "bucket", "link"]
    assert (parameters["minute_ns"], parameters["bucket_ns"], parameters["by_link"]) == (60 * S, 5 * S, True)
    assert parameters["by_model"] is False


def test_an_empty_store_answers_everything(store: DuckDBStore) -> None:
    reader = LocalReader(store, now_ns=lambda: T0)
    assert reader.requests(Filters()) == []
    assert reader.request("a") == []
    assert reader.ttft(["link", "minute"], Filters()) == []
    assert reader.ledger(Filters())["offered"] == 0
    assert reader.facets(Filters())["requests"] == 0
    live = reader.live(Filters())
    assert (live["now_ns"], live["newest_ns"], live["totals"]["mean_ns"]) == (T0, None, None)
    assert len(live["buckets"]) == 60
    assert live["in_flight"] == {"count": 0, "oldest_ns": None, "by_stage": {}, "rows": []}
    doctor = reader.doctor()
    assert doctor["missing"] == []
    assert doctor["store"] == {"path": ":memory:", "bytes": None, "requests": 0, "first_ns": None, "last_ns": None}


def test_a_client_makes_offered_more_than_a_lower_bound(store: DuckDBStore) -> None:
    seen = make_request("a", [("prefill", 10)], ttft_claims=[TtftClaim("client", 12 * MS, "first content token")])
    store.replace_requests(seen.sources, [seen])
    assert LocalReader(store).ledger(Filters())["offered_is_lower_bound"] is False


def test_admission_is_visible_next_to_ttft(store: DuckDBStore) -> None:
    """Case rejections-hide-in-goodput: 441 rejections and 160 answers; TTFT speaks of the 160 only."""
    answered = [make_request(f"a{n}", [("prefill", 900)], at_s=n / 100) for n in range(160)]
    refused = [
        make_request(f"r{n}", None, at_s=n / 100, outcome="rejected", end_after_ms=150, http_status=429)
        for n in range(441)
    ]
    store.replace_requests([s for r in answered + refused for s in r.sources], answered + refused)
    reader = LocalReader(store)
    (ttft,) = reader.ttft([], Filters())
    ledger = reader.ledger(Filters())
    assert (ttft["requests"], ttft["p50_ns"]) == (160, 900 * MS)
    assert (ledger["offered"], ledger["ok"], ledger["rejected"]) == (601, 160, 441)


def test_percentiles_interpolate_linearly(store: DuckDBStore) -> None:
    requests = [make_request(f"a{n}", [("prefill", ms)], at_s=n) for n, ms in enumerate((10, 20, 30, 40))]
    store.replace_requests([s for r in requests for s in r.sources], requests)
    (row,) = LocalReader(store).ttft([], Filters())
    assert (row["p50_ns"], row["p90_ns"]) == (25 * MS, 37 * MS)
    assert row["p99_ns"] == pytest.approx(39.7 * MS)
    assert (row["p99_requests"], row["p99_mean_ns"]) == (1, 40 * MS)


def test_the_same_trace_may_hold_several_requests(store: DuckDBStore) -> None:
    two = [make_request(uid, [("prefill", 10)], trace_ids=["t" * 32], sources=["t" * 32]) for uid in ("x", "y")]
    store.replace_requests(["t" * 32], two)
    assert [row["uid"] for row in LocalReader(store).request("t" * 32)] == ["x", "y"]
