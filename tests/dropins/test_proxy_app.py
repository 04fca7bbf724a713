"""The reverse proxy itself: what passes, what stays at the hop, what a broken upstream looks like to a client."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from pdtrace.proxy.app import ProxyApp, UpstreamBroke
from pdtrace.proxy.headers import BadUpstream, parse_upstream, request_headers, response_headers, upstream_url
from pdtrace.proxy.prefill_first import PrefillFirst
from tests.dropins.engine import STREAMS, UNARY, Engine, engine, serving, until

TIMEOUT = httpx.Timeout(0.5, connect=0.5)


def quiet(app: Any) -> Any:
    async def served(scope: Any, receive: Any, send: Any) -> None:
        with contextlib.suppress(UpstreamBroke):
            await app(scope, receive, send)

    return served


def proxy_app(url: str, timeout: httpx.Timeout = TIMEOUT) -> ProxyApp:
    return ProxyApp(parse_upstream(url), httpx.AsyncHTTPTransport(trust_env=False), timeout)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Engine]:
    with engine() as it:
        yield it


@pytest.fixture(scope="module")
def proxy(upstream: Engine) -> Iterator[str]:
    with serving(quiet(proxy_app(upstream.url))) as url:
        yield url


@contextlib.contextmanager
def bad_server(answer: bytes | None) -> Iterator[str]:
    """Accepts connections, reads, says ``answer`` (None: nothing, and stays silent) and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                held.append(connection)
                if answer is not None:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

    threading.Thread(target=accept, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    for connection in held:
        connection.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_every_method_path_and_query(proxy: str, method: str) -> None:
    body = b"" if method in ("GET", "OPTIONS") else bytes(range(256)) * 100
    answer = httpx.request(method, f"{proxy}/a%2Fb/%C3%BC//c?x=%20y&x=z;1", content=body)
    told = answer.json()
    assert answer.status_code == 201
    assert (told["method"], told["path"], told["query"]) == (method, "/a%2Fb/%C3%BC//c", "x=%20y&x=z;1")
    assert told["body"].encode("latin-1") == body


def test_head_has_no_body(proxy: str, upstream: Engine) -> None:
    through, direct = httpx.head(f"{proxy}/x"), httpx.head(f"{upstream.url}/x")
    assert (through.status_code, through.content) == (direct.status_code, b"") == (201, b"")


def test_a_body_in_pieces_without_a_length(proxy: str) -> None:
    pieces = [b"a" * 70_000, b"b" * 70_000, b"c"]
    told = httpx.post(f"{proxy}/x", content=iter(pieces)).json()
    assert told["body"].encode() == b"".join(pieces)


def test_headers_of_the_hop_stay_and_all_others_pass(proxy: str) -> None:
    sent = {"x-kept": "1", "connection": "x-hop", "x-hop": "2", "te": "trailers", "x-forwarded-for": "10.0.0.1"}
    answer = httpx.get(f"{proxy}/x", headers=sent)
    arrived = answer.json()["headers"]
    names = [name for name, _ in arrived]
    values = dict(arrived)
    assert "x-hop" not in names
    assert "te" not in names
    assert values["x-kept"] == "1"
    assert values["x-forwarded-for"] == "10.0.0.1, 127.0.0.1"
    assert values["x-forwarded-proto"] == "http"
    assert values["x-forwarded-host"] in proxy
    assert names.count("host") == 1
    assert values["host"] not in proxy
    assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
    assert "x-secret" not in answer.headers
    assert "keep-alive" not in answer.headers


@pytest.mark.parametrize("behave", [*STREAMS, "gzip", "unary", "429", "500"])
def test_answers_pass_byte_for_byte(proxy: str, upstream: Engine, behave: str) -> None:
    def raw(base: str) -> tuple[int, str | None, bytes]:
        asked = {"model": "tiny", "stream": True, "behave": behave}
        with httpx.stream("POST", f"{base}/v1/chat/completions", json=asked) as answer:
            return answer.status_code, answer.headers.get("content-type"), b"".join(answer.iter_raw())

    assert raw(proxy) == raw(upstream.url)


def test_pieces_pass_as_they_come(proxy: str) -> None:
    """The endless stream would never end for a proxy that collects it."""
    with httpx.stream("POST", f"{proxy}/v1/chat/completions", json={"behave": "endless"}) as answer:
        pieces = answer.iter_raw()
        assert b"assistant" in next(pieces)


def test_a_client_that_goes_takes_the_upstream_call_with_it(proxy: str, upstream: Engine) -> None:
    upstream.cancelled.clear()
    with httpx.stream("POST", f"{proxy}/v1/chat/completions", json={"behave": "endless"}) as answer:
        next(answer.iter_raw())
    assert upstream.cancelled.wait(5)


def test_a_client_that_goes_before_the_answer_ends_the_wait(upstream: Engine) -> None:
    calls: list[str] = []

    class Slow(httpx.AsyncHTTPTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            calls.append("begun")
            try:
                return await super().handle_async_request(request)
            finally:
                calls.append("ended")

    app = ProxyApp(parse_upstream(upstream.url), Slow(trust_env=False), httpx.Timeout(30))
    with serving(app) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json={"wait_s": 20}, timeout=0.3)
        assert until(lambda: calls == ["begun", "ended"])


def test_an_upstream_that_breaks_off_is_not_a_short_answer(proxy: str) -> None:
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", f"{proxy}/v1/chat/completions", json={"behave": "reset"}) as answer,
    ):
        for _ in answer.iter_raw():
            pass


def error_of(url: str) -> tuple[int, str]:
    answer = httpx.post(f"{url}/v1/chat/completions", json={})
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert "gave no answer" in error["message"]
    return answer.status_code, error["type"]


def test_nobody_there_is_a_502() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with serving(proxy_app(dead)) as url:
        assert error_of(url) == (502, "upstream_unreachable")


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 2"])
def test_no_http_is_a_502(answer: bytes) -> None:
    with bad_server(answer) as bad, serving(proxy_app(bad)) as url:
        assert error_of(url) == (502, "upstream_unreachable")


def test_silence_is_a_504() -> None:
    with bad_server(None) as silent, serving(proxy_app(silent)) as url:
        assert error_of(url) == (504, "upstream_timeout")


def test_a_full_pool_is_a_503(upstream: Engine) -> None:
    transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1), trust_env=False)
    app = ProxyApp(parse_upstream(upstream.url), transport, httpx.Timeout(5, pool=0.2))
    with (
        serving(app) as url,
        httpx.stream("POST", f"{url}/v1/chat/completions", json={"behave": "endless"}) as first,
    ):
        pieces = first.iter_raw()  # kept: a generator that is collected closes its connection
        next(pieces)
        assert error_of(url) == (503, "proxy_overloaded")


@pytest.mark.parametrize(
    "text",
    ["", "engine", "127.0.0.1:8000", "ftp://host", "http://", "http://host:port", "http://h?x=1", "http://u:p@h"],
)
def test_bad_upstreams(text: str) -> None:
    with pytest.raises(BadUpstream, match=r"http|address|query"):
        parse_upstream(text)


def test_a_base_path_comes_in_front() -> None:
    scope = {"path": "/v1/x", "raw_path": b"/v1/x%20", "query_string": b"a=b", "headers": []}
    assert str(upstream_url(parse_upstream("https://h:1/base/"), scope)) == "https://h:1/base/v1/x%20?a=b"
    assert str(upstream_url(parse_upstream("http://h"), {**scope, "query_string": b""})) == "http://h/v1/x%20"


def test_header_rules_without_a_client_address() -> None:
    scope = {"headers": [(b"Host", b"h"), (b"Expect", b"100-continue"), (b"A", b"b")], "scheme": "https"}
    assert request_headers(scope) == [(b"a", b"b"), (b"x-forwarded-host", b"h"), (b"x-forwarded-proto", b"https")]
    raw = [(b"Connection", b"close, X-a"), (b"X-A", b"1"), (b"X-B", b"2"), (b"Transfer-Encoding", b"chunked")]
    assert response_headers(raw) == [(b"x-b", b"2")]


# --------------------------------------------------------------------------------------------------- P first, then D


@contextlib.contextmanager
def pair() -> Iterator[tuple[str, Engine, Engine]]:
    with engine() as p, engine() as d:
        transport = httpx.AsyncHTTPTransport(trust_env=False)
        with serving(quiet(PrefillFirst(proxy_app(d.url), [parse_upstream(p.url)], transport, TIMEOUT))) as url:
            yield url, p, d


def test_the_prompt_goes_to_p_and_then_the_request_to_d() -> None:
    asked = {
        "model": "tiny",
        "stream": True,
        "max_tokens": 9,
        "min_tokens": 5,
        "stream_options": {"include_usage": True},
    }
    with pair() as (url, p, d):
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, headers={"x-request-id": "r1"})
        assert answer.content == b"".join(STREAMS["stream"])
        assert httpx.get(f"{url}/v1/models").text == "tiny"
    (to_p,), (to_d,) = p.seen, d.seen
    wanted = {"model": "tiny", "stream": False, "max_tokens": 1}
    assert {name: to_p["body"][name] for name in to_p["body"] if name != "kv_transfer_params"} == wanted
    assert to_p["body"]["kv_transfer_params"]["do_remote_decode"] is True
    assert to_d["body"] == asked | {"kv_transfer_params": {"remote_engine_id": "p0"}}
    assert to_p["headers"]["x-request-id"] == to_d["headers"]["x-request-id"] == "r1"


def test_what_p_refuses_d_never_sees() -> None:
    with pair() as (url, p, d):
        answer = httpx.post(f"{url}/v1/completions", json={"behave": "400"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (400, "refused with 400")
        assert (len(p.seen), len(d.seen)) == (1, 0)


def test_a_dead_p_is_a_502(upstream: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = parse_upstream(f"http://127.0.0.1:{taken.getsockname()[1]}")
    app = PrefillFirst(proxy_app(upstream.url), [dead], httpx.AsyncHTTPTransport(trust_env=False), TIMEOUT)
    with serving(app) as url:
        assert error_of(url) == (502, "upstream_unreachable")


def test_a_body_that_is_no_json_is_for_d_to_refuse() -> None:
    with pair() as (url, p, d):
        assert httpx.post(f"{url}/v1/completions", content=b"what").status_code == 500  # the engine of this test
        assert (len(p.seen), len(d.seen)) == (0, 0)


def test_a_client_that_goes_while_p_works() -> None:
    with pair() as (url, p, d):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/v1/chat/completions", json={"wait_s": 0.4}, timeout=0.1)
        assert until(lambda: len(p.seen) == 1)
        assert not until(lambda: bool(d.seen), 0.5)


def test_unary_through_both() -> None:
    with pair() as (url, _, d):
        answer = httpx.post(f"{url}/v1/chat/completions", json={"model": "tiny"}).json()
        assert answer == UNARY | {"kv_transfer_params": {"remote_engine_id": "p0"}}
        assert json.loads(json.dumps(d.seen[0]["body"]))["kv_transfer_params"] == {"remote_engine_id": "p0"}
