"""The query API: answers, errors, health, Arrow."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from pdtrace.api.app import Backend, make_app
from pdtrace.api.arrow import ARROW, from_arrow, wants_arrow
from pdtrace.outcomes import OUTCOMES
from pdtrace.reader.contract import Filters
from tests.reader.requests import MS, T0, trace_id_of


def ids(answer: Any) -> list[str]:
    return [row["request_id"] for row in answer.json()]


def test_requests_carry_exact_integers(api: TestClient) -> None:
    answer = api.get("/v1/requests")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    row = answer.json()[0]
    assert row["window"] == [T0, T0 + 120 * MS]
    assert row["sections"] == {"prefill": 95 * MS, "handoff": 10 * MS, "first_token": 10 * MS, "ingress": 5 * MS}
    assert sum(row["sections"].values()) == row["ttft_ns"]
    assert row["hidden"] == {"handoff": 40 * MS}
    assert row["saving"] == {"prefill": 55 * MS, "prefill_opaque": None}
    assert row["warnings"] == ["no_edge_span"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["req-one", "req-two", "req-three"]),
        ("limit=1", ["req-one"]),
        ("limit=1&offset=1", ["req-two"]),
        ("order_by=t0&descending=true", ["req-three", "req-two", "req-one"]),
        (f"since={T0 + 1}", ["req-two", "req-three"]),
        (f"until={T0 + 1}", ["req-one"]),
        ("outcome=cancelled", ["req-two"]),
        ("model=qwen", ["req-three"]),
        ("mode=overlapped", []),
        ("prefill_worker=p/1%20%C3%BC", ["req-two"]),
        ("decode_worker=d9", []),
        ("q=req-t", ["req-two", "req-three"]),
    ],
)
def test_filters_order_and_pages(api: TestClient, query: str, expected: list[str]) -> None:
    assert ids(api.get(f"/v1/requests?{query}")) == expected


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/requests?modell=x", "unknown parameter 'modell'"),
        ("/v1/requests?outcome=great", "one of ok,"),
        ("/v1/requests?limit=0", "1 to 10000"),
        ("/v1/requests?limit=many", "not an integer"),
        ("/v1/requests?limit=1&limit=2", "given twice"),
        ("/v1/requests?descending=yes", "true or false"),
        ("/v1/requests?order_by=beauty", "one of t0,"),
        ("/v1/requests?since=99999999999999999999", "not an integer"),
        ("/v1/ttft?by=planet", "planet"),
        ("/v1/ttft?by=model,model", "once"),
        ("/v1/live?window_s=0", "1 to"),
        ("/v1/doctor?verbose=1", "takes no parameters"),
    ],
)
def test_a_wrong_question_is_400_and_says_what_would_be_right(api: TestClient, path: str, says: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]


def test_one_request_by_any_of_its_ids(api: TestClient) -> None:
    for any_id in ("one", "req-one", trace_id_of("one")):
        (row,) = api.get(f"/v1/requests/{any_id}").json()["requests"]
        assert row["uid"] == "one"
        assert [stage for stage, _, _ in row["section_list"]] == ["ingress", "prefill", "handoff", "first_token"]
        assert row["ttft_claims"][0]["difference_ns"] == 54 * MS - 120 * MS


def test_several_requests_in_full(api: TestClient) -> None:
    rows = api.get("/v1/details?uids=two,one,nobody").json()
    assert [row["uid"] for row in rows] == ["one", "two"]
    assert rows[0] == api.get("/v1/requests/one").json()["requests"][0]
    assert api.get("/v1/details").json() == []
    many = ",".join(str(number) for number in range(1001))
    assert "at most 1000" in api.get(f"/v1/details?uids={many}").json()["error"]


@pytest.mark.parametrize(
    "path",
    ["/v1/requests/nobody", "/v1/requests/nobody/spans", "/v1/requests/nobody/perfetto", "/v1/requests/a%2Fb", "/v2"],
)
def test_what_is_not_there_is_404_with_a_sentence(api: TestClient, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 404
    assert ";" in answer.json()["error"]


def test_other_methods_are_405_with_allow(api: TestClient) -> None:
    answer = api.post("/v1/requests")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    assert "use GET" in answer.json()["error"]


def test_spans_keep_what_json_lacks(api: TestClient) -> None:
    (span,) = api.get("/v1/requests/one/spans").json()
    assert span["span_id"] == "00000000000000aa"
    assert span["attributes"]["n"] == 2**53 + 1
    assert "NaN" in str(span["attributes"]["x"])
    assert span["attributes"]["raw"] is not None
    assert api.get("/v1/requests/two/spans").json() == []


def test_perfetto_is_the_exporters_trace(api: TestClient) -> None:
    trace = api.get("/v1/requests/one/perfetto").json()
    assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"} >= {"prefill", "handoff", "first_token"}


def test_ttft_by_dimension(api: TestClient) -> None:
    (group,) = api.get("/v1/ttft?by=model,prefill_worker").json()
    assert (group["model"], group["prefill_worker"], group["requests"]) == ("llama", "p0", 1)
    assert group["mean_ns"] == 120 * MS
    assert sum(group["sections"].values()) == pytest.approx(120 * MS)


def test_ledger_sums_to_offered(api: TestClient) -> None:
    ledger = api.get("/v1/ledger").json()
    assert ledger["offered"] == 3
    assert sum(ledger[name] for name in OUTCOMES) == 3
    assert (ledger["ok"], ledger["cancelled"], ledger["in_flight"]) == (1, 1, 1)


def test_live_facets_and_doctor_answer(api: TestClient) -> None:
    live = api.get(f"/v1/live?since={T0}&until={T0 + 10_000 * MS}&bucket_s=5").json()
    assert [bucket["offered"] for bucket in live["buckets"]] == [3, 0]
    assert live["in_flight"]["count"] == 1
    assert live["in_flight"]["by_stage"] == {"unattributed": 1}
    assert api.get("/v1/facets").json()["models"] == ["llama", "qwen"]
    doctor = api.get("/v1/doctor").json()
    assert doctor["ingest"]["rejected"] == 3
    assert doctor["store"]["requests"] == 3


def test_lists_come_as_arrow_when_asked(api: TestClient) -> None:
    for path in ("/v1/requests", "/v1/requests/one/spans", "/v1/ttft?by=model"):
        arrow = api.get(path, headers={"accept": f"text/html, {ARROW};q=0.9"})
        assert arrow.headers["content-type"] == ARROW
        plain = api.get(path).json()
        names = dict.fromkeys(name for row in plain for name in row)
        assert from_arrow(arrow.content) == [{name: row.get(name) for name in names} for row in plain]


def test_an_empty_list_is_an_arrow_stream_too(api: TestClient) -> None:
    answer = api.get("/v1/requests?model=none", headers={"accept": ARROW})
    assert from_arrow(answer.content) == []


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [("", False), ("*/*", False), ("application/json", False), (ARROW, True), (ARROW.upper(), True)],
)
def test_arrow_is_only_for_who_names_it(accept: str, wanted: bool) -> None:
    assert wants_arrow(accept) is wanted


def test_before_it_is_ready_it_says_what_it_waits_for() -> None:
    backend = Backend(waiting_for="the write-ahead log to be replayed")
    client = TestClient(make_app(backend))
    assert client.get("/healthz").json() == {"status": "ok"}
    for path in ("/readyz", "/v1/requests"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "the write-ahead log to be replayed" in answer.json()["error"]


def test_ready_and_metrics(api: TestClient) -> None:
    assert api.get("/readyz").json() == {"status": "ready"}
    assert api.get("/metrics").text == "pdtrace_up 1\n"


def test_a_failing_read_is_500_with_a_sentence(api: TestClient, backend: Backend) -> None:
    class Broken:
        def ledger(self, filters: Filters) -> Any:
            raise RuntimeError("the disk is gone")

    backend.reader = Broken()  # type: ignore[assignment]
    answer = api.get("/v1/ledger")
    assert answer.status_code == 500
    assert "the disk is gone" in answer.json()["error"]


def test_a_slow_read_does_not_hold_the_others_up(api: TestClient, backend: Backend) -> None:
    """The slow read ends only when the quick ones have been answered."""
    quick_done = threading.Event()
    reader = backend.reader

    class Slow:
        def ledger(self, filters: Filters) -> Any:
            return {"waited": quick_done.wait(60)}

        def __getattr__(self, name: str) -> Any:
            return getattr(reader, name)

    backend.reader = Slow()  # type: ignore[assignment]
    answers: list[Any] = []
    slow = threading.Thread(target=lambda: answers.append(api.get("/v1/ledger").json()))
    slow.start()
    assert api.get("/v1/requests").status_code == 200
    assert api.get("/healthz").status_code == 200
    quick_done.set()
    slow.join(60)
    assert answers == [{"waited": True}]
