"""The HTTP reader: the conformance suite over a real socket, paging, and what it says when the service does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from pdtrace.api.app import Backend, make_app
from pdtrace.reader import http as http_module
from pdtrace.reader.contract import BadQuestion, Filters, Reader
from pdtrace.reader.http import HttpReader, ServiceProblem
from pdtrace.reader.local import LocalReader
from pdtrace.service.ports import HttpServer, listen, port_of
from pdtrace.store.duckdb import DuckDBStore
from tests.reader.conformance import ReaderConformance
from tests.reader.known import fill


@pytest.fixture(scope="module")
def local() -> Iterator[LocalReader]:
    store = DuckDBStore(":memory:")
    fill(store)
    yield LocalReader(store)
    store.close()


@pytest.fixture(scope="module")
def url(local: LocalReader) -> Iterator[str]:
    listener = listen("127.0.0.1", 0, "the test's API")
    server = HttpServer(make_app(Backend(reader=local)), listener, "test-api")
    server.start()
    yield f"http://127.0.0.1:{port_of(listener)}"
    server.stop()


@pytest.fixture
def remote(url: str) -> Iterator[HttpReader]:
    with HttpReader(url) as reader:
        yield reader


class TestHttpReader(ReaderConformance):
    @pytest.fixture
    def reader(self, remote: HttpReader) -> Reader:
        return remote


def test_answers_are_those_of_the_local_reader(remote: HttpReader, local: LocalReader) -> None:
    everything = Filters()
    rows = local.requests(everything)
    assert remote.requests(everything) == rows
    for row in rows:
        assert remote.request(row["uid"]) == local.request(row["uid"])
        assert remote.spans(row["uid"]) == local.spans(row["uid"])
    uids = [row["uid"] for row in rows]
    assert remote.details(uids) == local.details(uids)
    assert len(remote.details(uids)) == len(uids)
    for by in ([], ["prefill_worker", "link"], ["bucket:10"]):
        assert remote.ttft(by, everything) == local.ttft(by, everything)
    assert remote.ledger(everything) == local.ledger(everything)
    assert remote.facets(everything) == local.facets(everything)
    assert remote.doctor() == local.doctor()


@pytest.mark.parametrize("limit", [None, 1, 3, 5, 1000])
@pytest.mark.parametrize("offset", [0, 2])
def test_pages_join_without_gaps(
    remote: HttpReader, local: LocalReader, monkeypatch: pytest.MonkeyPatch, limit: int | None, offset: int
) -> None:
    monkeypatch.setattr(http_module, "PAGE_ROWS", 2)
    asked = Filters(limit=limit)
    assert remote.requests(asked, offset=offset) == local.requests(asked, offset=offset)


def test_details_of_many_are_asked_in_parts(
    remote: HttpReader, local: LocalReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_module, "DETAILS_ROWS", 2)
    uids = [row["uid"] for row in local.requests(Filters())]
    assert remote.details(list(reversed(uids))) == local.details(uids)


def test_ids_of_any_form_are_asked_as_they_are(remote: HttpReader) -> None:
    for odd in ("a/b", "a?b=c", "ü%2F", "../v1/doctor", "spans", " ", ""):
        assert remote.request(odd) == []


@pytest.mark.parametrize(
    "ask",
    [
        lambda reader: reader.requests(Filters(), order_by="beauty"),
        lambda reader: reader.requests(Filters(), offset=-1),
        lambda reader: reader.requests(Filters(limit=-1)),
        lambda reader: reader.ttft(["planet"], Filters()),
        lambda reader: reader.live(Filters(), bucket_s=0),
    ],
)
def test_a_wrong_question_is_one_here_too(remote: HttpReader, ask: Callable[[Reader], object]) -> None:
    with pytest.raises(BadQuestion):
        ask(remote)


def answering(response: httpx.Response) -> HttpReader:
    transport = httpx.MockTransport(lambda _: response)
    return HttpReader("http://stranger", client=httpx.Client(base_url="http://stranger", transport=transport))


def failing(problem: Exception) -> HttpReader:
    def fail(_: httpx.Request) -> httpx.Response:
        raise problem

    transport = httpx.MockTransport(fail)
    return HttpReader("http://stranger", client=httpx.Client(base_url="http://stranger", transport=transport))


@pytest.mark.parametrize(
    ("reader", "says"),
    [
        (failing(httpx.ConnectError("refused")), "pdtrace serve"),
        (failing(httpx.ReadTimeout("")), "did not answer in time"),
        (answering(httpx.Response(200, text="<html>")), "port 4320"),
        (answering(httpx.Response(404, text="nginx")), "HTTP 404"),
        (answering(httpx.Response(500, json={"error": "the disk is gone"})), "the disk is gone"),
        (answering(httpx.Response(503, json={"error": "not ready: waiting; ask again"})), "not ready"),
    ],
)
def test_what_goes_wrong_on_the_way_is_one_sentence(reader: HttpReader, says: str) -> None:
    with pytest.raises(ServiceProblem, match=says) as told:
        reader.request("x")
    assert "\n" not in str(told.value)
    assert "http://stranger" in str(told.value)


def test_what_is_no_url_is_told() -> None:
    for text in ("http://[bad", "localhost:4320"):
        with pytest.raises(ServiceProblem, match=r"127\.0\.0\.1:4320|pdtrace serve"):
            HttpReader(text).ledger(Filters())
