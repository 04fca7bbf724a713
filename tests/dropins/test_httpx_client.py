"""Calls to P and D workers through traced httpx clients, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from pdtrace.instrumentation.current import use_record
from pdtrace.instrumentation.httpx_client import AsyncTracedTransport, TracedTransport, instrument
from tests.dropins.engine import STREAMS, Engine, engine, serving, until
from tests.dropins.recording import Recording, Span
from tests.dropins.routers import starlette_router

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Engine]:
    with engine() as it:
        yield it


@pytest.fixture
def dead() -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def request() -> Iterator[tuple[Recording, Any]]:
    """A request that a router works on without the middleware."""
    recording = Recording(background=False)
    record = recording.recorder.begin("r1", edge=True)
    with use_record(record, "r1"):
        yield recording, record
    record.finish("ok")


def post(url: str, behave: str, *, is_async: bool = False, **options: Any) -> bytes:
    """One call through a traced client of its own, sync or async; the bytes of the answer."""
    headers = options.pop("headers", None)
    if not is_async:
        with (
            instrument(httpx.Client(timeout=2), **options) as client,
            client.stream("POST", url + PATH, json={"behave": behave}, headers=headers) as answer,
        ):
            return b"".join(answer.iter_raw())

    async def call() -> bytes:
        async with (
            instrument(httpx.AsyncClient(timeout=2), **options) as client,
            client.stream("POST", url + PATH, json={"behave": behave}, headers=headers) as answer,
        ):
            return b"".join([piece async for piece in answer.aiter_raw()])

    return asyncio.run(call())


def stages(recording: Recording) -> list[Span]:
    return [span for span in recording.spans() if span.name != "pdtrace.request"]


both = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


@both
@pytest.mark.parametrize("behave", ["stream", "bytewise", "unary", "429", "500", "gzip"])
def test_same_bytes(upstream: Engine, behave: str, is_async: bool) -> None:
    plain = httpx.Client().stream("POST", upstream.url + PATH, json={"behave": behave})
    with plain as answer:
        wanted = b"".join(answer.iter_raw())
    with request():
        assert post(upstream.url, behave, is_async=is_async, role="decode", opaque=True) == wanted


@both
def test_context_and_request_id_go_with_the_call(upstream: Engine, is_async: bool) -> None:
    with request() as (_, record):
        post(upstream.url, "unary", is_async=is_async, role="prefill")
        headers = upstream.seen[-1]["headers"]
        assert headers["traceparent"] == record.traceparent
        assert headers["x-request-id"] == "r1"


def test_what_a_caller_knows_better_stays(upstream: Engine) -> None:
    with request() as (_, record):
        inner = f"00-{record.trace_id}-{'12' * 8}-01"
        post(upstream.url, "unary", role="prefill", headers={"traceparent": inner, "x-request-id": "___addr___r1"})
        headers = upstream.seen[-1]["headers"]
        assert (headers["traceparent"], headers["x-request-id"]) == (inner, "___addr___r1")
        copied = f"00-{'99' * 16}-{'12' * 8}-01"
        post(upstream.url, "unary", role="prefill", headers={"traceparent": copied})
        assert upstream.seen[-1]["headers"]["traceparent"] == record.traceparent


def test_nothing_is_added_outside_of_a_request_or_on_other_paths(upstream: Engine) -> None:
    post(upstream.url, "unary", role="prefill")
    assert not {"traceparent", "x-request-id"} & set(upstream.seen[-1]["headers"])
    with request() as (recording, _), instrument(httpx.Client(), "decode", opaque=True) as client:
        told = client.post(f"{upstream.url}/tokenize", content=b"x").json()
        assert not {"traceparent", "x-request-id"} & {name for name, _ in told["headers"]}
    assert stages(recording) == []


@both
def test_a_good_leg_says_nothing_unless_asked(upstream: Engine, is_async: bool) -> None:
    with request() as (recording, _):
        post(upstream.url, "unary", is_async=is_async, role="prefill")
        post(upstream.url, "stream", is_async=is_async, role="decode")
    assert stages(recording) == []


@both
@pytest.mark.parametrize(
    ("role", "name"),
    [("prefill", "prefill_opaque"), ("decode", "decode_opaque"), ("aggregated", "prefill_opaque")],
)
def test_an_opaque_leg_is_the_workers_visit(upstream: Engine, role: Any, name: str, is_async: bool) -> None:
    with request() as (recording, record):
        post(upstream.url, "stream", is_async=is_async, role=role, opaque=True)
        post(upstream.url, "stream", is_async=is_async, role=role, opaque=True, worker="w0")
    first, second = stages(recording)
    root = recording.request()
    for span, worker in ((first, upstream.url.removeprefix("http://")), (second, "w0")):
        assert (span.name, span.parent_id, span.trace_id) == (f"pdtrace.{name}", record.span_id, record.trace_id)
        assert span.attributes["service.instance.id"] == worker
        assert span.attributes["pdtrace.worker.role"] == role
        assert span.attributes["pdtrace.attempt"] == 0
        assert span.status == 0
        assert root.start_ns <= span.start_ns < span.end_ns <= root.end_ns
    assert first.end_ns <= second.start_ns


@both
def test_failures_and_the_attempts_after_them(upstream: Engine, dead: str, is_async: bool) -> None:
    """Each fails on its own way; the fourth call answers, and only failures are told."""
    with request() as (recording, _):
        with pytest.raises(httpx.ConnectError):
            post(dead, "unary", is_async=is_async, role="prefill")
        with pytest.raises(httpx.RemoteProtocolError):
            post(upstream.url, "reset", is_async=is_async, role="prefill")
        post(upstream.url, "500", is_async=is_async, role="prefill")
        post(upstream.url, "unary", is_async=is_async, role="prefill", opaque=True)
        post(upstream.url, "unary", is_async=is_async, role="decode", opaque=True)
    told = [(span.name, span.attributes["pdtrace.attempt"], span.status) for span in stages(recording)]
    assert told == [
        ("pdtrace.prefill_opaque", 0, 2),
        ("pdtrace.prefill_opaque", 1, 2),
        ("pdtrace.prefill_opaque", 2, 2),
        ("pdtrace.prefill_opaque", 3, 0),
        ("pdtrace.decode_opaque", 0, 0),
    ]


def test_a_timeout_is_a_failure_and_a_refusal_is_none(upstream: Engine) -> None:
    with request() as (recording, _), instrument(httpx.Client(timeout=0.1), "decode") as client:
        with pytest.raises(httpx.ReadTimeout):
            client.post(upstream.url + PATH, json={"wait_s": 0.5})
        assert client.post(upstream.url + PATH, json={"behave": "429"}, timeout=5).status_code == 429
    (span,) = stages(recording)
    assert (span.name, span.status) == ("pdtrace.decode_opaque", 2)


def test_first_token_and_times_where_no_middleware_is(upstream: Engine) -> None:
    with request() as (recording, _):
        post(upstream.url, "unary", role="prefill")
        post(upstream.url, "reasoning", role="decode")
    told = recording.request().attributes
    assert len(told["pdtrace.token_times_ns"]) == 4
    assert told["pdtrace.first_token_ns"] - recording.request().start_ns == told["pdtrace.token_times_ns"][0]


def test_a_prefills_own_token_is_not_the_users(upstream: Engine) -> None:
    with request() as (recording, _):
        post(upstream.url, "stream", role="prefill")
    assert "pdtrace.first_token_ns" not in recording.request().attributes


def test_a_caller_that_stops_reading_ends_the_leg_without_a_failure(upstream: Engine) -> None:
    upstream.cancelled.clear()
    with request() as (recording, _), instrument(httpx.Client(), "decode", opaque=True) as client:
        with client.stream("POST", upstream.url + PATH, json={"behave": "endless"}) as answer:
            next(answer.iter_raw())
        assert upstream.cancelled.wait(5)
    (span,) = stages(recording)
    assert span.status == 0


def test_transports_alone_and_mounts(upstream: Engine) -> None:
    with request() as (recording, _):
        transport = TracedTransport(httpx.HTTPTransport(), "prefill", opaque=True, worker="p0")
        with httpx.Client(transport=transport) as client:
            client.post(upstream.url + PATH, json={})
        with instrument(httpx.Client(mounts={"http://": httpx.HTTPTransport()}), "decode", opaque=True) as client:
            client.post(upstream.url + PATH, json={})
    assert [span.name for span in stages(recording)] == ["pdtrace.prefill_opaque", "pdtrace.decode_opaque"]


def test_a_broken_record_breaks_no_call(upstream: Engine) -> None:
    class Broken:
        recording = True
        traceparent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"

        @property
        def clock(self) -> Any:
            raise RuntimeError("broken on purpose")

    class BreaksLater(Broken):
        class clock:  # noqa: N801
            now_ns = staticmethod(lambda: 1)

        def add(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("broken on purpose")

        tokens = add

    record: Any
    for record in (Broken(), BreaksLater()):
        with use_record(record, "r"):
            assert post(upstream.url, "stream", role="decode", opaque=True) == b"".join(STREAMS["stream"])


@pytest.mark.parametrize("opaque", [False, True])
def test_inside_a_router_with_the_middleware(upstream: Engine, opaque: bool) -> None:
    """The middleware is nearer to the user, so its stamps are the tokens'; the leg lies inside its request."""
    from pdtrace.instrumentation.asgi import PdtraceMiddleware

    recording = Recording()

    def client() -> httpx.AsyncClient:
        way = AsyncTracedTransport(httpx.AsyncHTTPTransport(), "decode", worker="d0", opaque=opaque)
        return httpx.AsyncClient(transport=way)

    app = starlette_router(upstream.url, client)
    app.add_middleware(PdtraceMiddleware, recorder=recording.recorder)
    with serving(app) as url:
        assert httpx.post(url + PATH, json={"behave": "stream"}).content == b"".join(STREAMS["stream"])
        assert until(lambda: recording.spans("pdtrace.request"))
    root = recording.request()
    assert len(root.attributes["pdtrace.token_times_ns"]) == 3
    assert [span.parent_id for span in stages(recording)] == [root.span_id] * opaque
    recording.recorder.shutdown(2)


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [("500", "stream", "ok_fallback"), ("stream", "stream", "ok"), ("500", "500", "failed_decode"),
     ("500", "429", "rejected")],
)  # fmt: skip
def test_a_router_that_retries_tells_a_fallback_from_a_failure(
    upstream: Engine, first: str, second: str, outcome: str
) -> None:
    from pdtrace.instrumentation.asgi import PdtraceMiddleware

    async def app(scope: Any, receive: Any, send: Any) -> None:
        async with instrument(httpx.AsyncClient(), "decode") as client:
            answer = await client.post(upstream.url + PATH, json={"behave": first})
            if answer.status_code == 500:
                answer = await client.post(upstream.url + PATH, json={"behave": second})
        await send({"type": "http.response.start", "status": answer.status_code, "headers": []})
        await send({"type": "http.response.body", "body": answer.content})

    recording = Recording()
    with serving(PdtraceMiddleware(app, recording.recorder)) as url:
        httpx.post(url + PATH, json={})
        assert recording.request().attributes["pdtrace.outcome"] == outcome
    recording.recorder.shutdown(2)


def test_the_async_stream_is_closed_with_its_reader(upstream: Engine) -> None:
    upstream.cancelled.clear()

    async def some(answer: httpx.Response) -> AsyncIterator[bytes]:
        async for piece in answer.aiter_raw():
            yield piece

    async def call(done: Callable[[], bool]) -> None:
        client = instrument(httpx.AsyncClient(), "decode", opaque=True)
        async with client, client.stream("POST", upstream.url + PATH, json={"behave": "endless"}) as answer:
            pieces = some(answer)
            await pieces.__anext__()
        await asyncio.to_thread(until, done)

    with request() as (recording, _):
        asyncio.run(call(upstream.cancelled.is_set))
    assert upstream.cancelled.is_set()
    assert [span.status for span in stages(recording)] == [0]
