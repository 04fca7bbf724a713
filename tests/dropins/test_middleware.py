"""The middleware in real FastAPI and Starlette routers, over real sockets, under httpx and the openai client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from starlette.middleware.base import BaseHTTPMiddleware

from pdtrace.instrumentation.asgi import PdtraceMiddleware
from tests.dropins.engine import STREAMS, WORD_COUNT, Engine, engine, serving, until
from tests.dropins.recording import Recording
from tests.dropins.routers import fastapi_router, starlette_router

ROUTERS = {"starlette": starlette_router, "fastapi": fastapi_router}
OUTCOMES = {
    "stream": "ok", "crlf": "ok", "bytewise": "ok", "at_once": "ok", "reasoning": "ok", "huge": "ok", "gzip": "ok",
    "unary": "ok", "error_first": "failed", "error_later": "failed", "over_long": "invalid", "cut": "failed",
    "400": "invalid", "429": "rejected", "503": "rejected", "504": "timed_out", "500": "failed",
}  # fmt: skip


@pytest.fixture(scope="module")
def upstream() -> Iterator[Engine]:
    with engine() as it:
        yield it


class Traced:
    """A router with the middleware, its recorder, and the same router without."""

    def __init__(self, url: str, plain_url: str, recording: Recording) -> None:
        self.url, self.plain_url, self.recording = url, plain_url, recording


@pytest.fixture(scope="module", params=list(ROUTERS))
def pair(request: pytest.FixtureRequest, upstream: Engine) -> Iterator[Traced]:
    recording = Recording(drain_every_s=0.01)
    app = ROUTERS[request.param](upstream.url)
    app.add_middleware(PdtraceMiddleware, recorder=recording.recorder)
    with serving(app) as url, serving(ROUTERS[request.param](upstream.url)) as plain_url:
        yield Traced(url, plain_url, recording)
    recording.recorder.shutdown(2)


@pytest.fixture
def traced(pair: Traced) -> Traced:
    pair.recording.spans()  # what an earlier test left on its way
    pair.recording.memory.bodies.clear()
    return pair


def ask(url: str, behave: str, **more: Any) -> tuple[int, list[tuple[str, str]], bytes]:
    """Status, headers without the date, and the body as it came."""
    asked = {"model": "asked-for", "behave": behave, **more}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=asked) as answer:
        body = b"".join(answer.iter_raw())
        return answer.status_code, [pair for pair in answer.headers.multi_items() if pair[0] != "date"], body


@pytest.mark.parametrize("behave", list(OUTCOMES))
def test_same_bytes_with_and_without(traced: Traced, behave: str) -> None:
    assert ask(traced.url, behave) == ask(traced.plain_url, behave)


@pytest.mark.parametrize("behave", list(OUTCOMES))
def test_outcome_tokens_and_facts(traced: Traced, behave: str) -> None:
    status, _, _ = ask(traced.url, behave)
    span = traced.recording.request()
    told = span.attributes
    assert told["pdtrace.outcome"] == OUTCOMES[behave]
    assert told["http.response.status_code"] == status
    assert told["gen_ai.request.model"] == ("tiny" if WORD_COUNT.get(behave) or behave == "unary" else "asked-for")
    words = WORD_COUNT.get(behave, 0)
    assert len(told.get("pdtrace.token_times_ns", [])) == words
    assert ("pdtrace.first_token_ns" in told) == bool(words)
    if words:
        assert told["pdtrace.first_token_ns"] - span.start_ns == told["pdtrace.token_times_ns"][0]
        assert told["pdtrace.token_times_ns"] == sorted(told["pdtrace.token_times_ns"])
        assert told["pdtrace.token_times_ns"][-1] <= span.end_ns - span.start_ns
    if behave in ("stream", "at_once", "unary"):
        assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (7, 3)
    assert ("pdtrace.error" in told) == (OUTCOMES[behave] != "ok")


def test_times_lie_within_the_clients_own(traced: Traced) -> None:
    ask(traced.url, "stream")  # connections are open
    begin = time.monotonic_ns()
    first = 0
    with httpx.stream(
        "POST", f"{traced.url}/v1/chat/completions", json={"behave": "stream", "wait_s": 0.1, "step_s": 0.03}
    ) as answer:
        for piece in answer.iter_raw():
            if not first and "grüß".encode() in piece:
                first = time.monotonic_ns()
    end = time.monotonic_ns()
    assert until(lambda: len(traced.recording.spans("pdtrace.request")) == 2)
    span = traced.recording.spans("pdtrace.request")[-1]
    times = span.attributes["pdtrace.token_times_ns"]
    assert times[0] <= first - begin
    # The engine waits 100 ms, then 30 ms before every chunk, of which the role comes first.
    assert all(at_ns >= (100 + 30 * (chunk + 2)) * 1_000_000 for chunk, at_ns in enumerate(times))
    assert span.end_ns - span.start_ns <= end - begin


def test_a_client_that_leaves(traced: Traced, upstream: Engine) -> None:
    upstream.cancelled.clear()
    with httpx.stream("POST", f"{traced.url}/v1/chat/completions", json={"behave": "endless"}) as answer:
        pieces = answer.iter_raw()
        while b"gr" not in next(pieces):
            pass
    assert upstream.cancelled.wait(5)
    told = traced.recording.request().attributes
    assert told["pdtrace.outcome"] == "cancelled"
    assert len(told["pdtrace.token_times_ns"]) >= 1


def test_an_engine_that_breaks_off(traced: Traced) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        ask(traced.url, "reset")
    told = traced.recording.request().attributes
    assert told["pdtrace.outcome"] == "failed"
    assert "RemoteProtocolError" in told["pdtrace.error"]
    assert len(told["pdtrace.token_times_ns"]) == 1


def test_trace_context_and_request_id_pass_through(traced: Traced, upstream: Engine) -> None:
    trace_id, caller = "ab" * 16, "cd" * 8
    headers = {"traceparent": f"00-{trace_id}-{caller}-01", "x-request-id": "r-1", "tracestate": "a=b"}
    httpx.post(f"{traced.url}/v1/chat/completions", json={}, headers=headers)
    span = traced.recording.request()
    assert (span.trace_id, span.parent_id, span.attributes["pdtrace.request.id"]) == (trace_id, caller, "r-1")
    arrived = upstream.seen[-1]["headers"]
    assert arrived["traceparent"] == f"00-{trace_id}-{span.span_id}-01"
    assert arrived["x-request-id"] == "r-1"


def test_a_request_id_is_made_where_none_came(traced: Traced, upstream: Engine) -> None:
    ids = set()
    for _ in range(2):
        httpx.post(f"{traced.url}/v1/chat/completions", json={}, headers={"traceparent": "garbage"})
        ids.add(upstream.seen[-1]["headers"]["x-request-id"])
    assert until(lambda: len(traced.recording.spans("pdtrace.request")) == 2)
    spans = traced.recording.spans("pdtrace.request")
    assert {span.attributes["pdtrace.request.id"] for span in spans} == ids
    assert len(ids) == 2
    assert len({span.trace_id for span in spans}) == 2


def test_other_paths_and_methods_are_not_traced(traced: Traced) -> None:
    assert httpx.get(f"{traced.url}/v1/models").status_code == 404
    assert httpx.get(f"{traced.url}/v1/chat/completions").status_code == 405
    assert traced.recording.spans() == []


@pytest.mark.parametrize("place", ["inside", "outside"])
def test_beside_starlettes_own_kind_of_middleware(upstream: Engine, place: str) -> None:
    """BaseHTTPMiddleware puts queues and tasks of its own between server and application."""

    async def pass_on(request: Any, call_next: Any) -> Any:
        return await call_next(request)

    recording = Recording()
    app = starlette_router(upstream.url)
    mine, other = (PdtraceMiddleware, {"recorder": recording.recorder}), (BaseHTTPMiddleware, {"dispatch": pass_on})
    for middleware, options in (mine, other) if place == "outside" else (other, mine):  # the last added is outermost
        app.add_middleware(middleware, **options)
    with serving(app) as url:
        assert ask(url, "stream")[2] == b"".join(STREAMS["stream"])
        upstream.cancelled.clear()
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={"behave": "endless"}) as answer:
            pieces = answer.iter_raw()
            while b"gr" not in next(pieces):
                pass
        assert upstream.cancelled.wait(5)
        assert until(lambda: len(recording.spans("pdtrace.request")) == 2)
    outcomes = [span.attributes["pdtrace.outcome"] for span in recording.spans("pdtrace.request")]
    assert outcomes == ["ok", "cancelled"]
    recording.recorder.shutdown(2)


# ---------------------------------------------------------------------------------------------------- openai's client


def client_of(traced: Traced) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{traced.url}/v1", api_key="none", max_retries=0, timeout=10)


def chat(client: openai.OpenAI, behave: str, *, stream: bool = True) -> Any:
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(model="m", messages=messages, stream=stream, extra_body={"behave": behave})


def test_openai_stream_and_unary(traced: Traced) -> None:
    with client_of(traced) as client:
        text = "".join(c.choices[0].delta.content or "" for c in chat(client, "stream") if c.choices)
        assert text == "grüß 🙂 dich"
        assert chat(client, "unary", stream=False).choices[0].message.content == "grüß dich"
    assert until(lambda: len(traced.recording.spans("pdtrace.request")) == 2)
    assert {span.attributes["pdtrace.outcome"] for span in traced.recording.spans("pdtrace.request")} == {"ok"}


@pytest.mark.parametrize(
    ("behave", "error", "outcome"),
    [
        ("429", openai.RateLimitError, "rejected"),
        ("400", openai.BadRequestError, "invalid"),
        ("500", openai.InternalServerError, "failed"),
        ("error_later", openai.APIError, "failed"),
        ("over_long", openai.APIError, "invalid"),
    ],
)
def test_openai_errors(traced: Traced, behave: str, error: type[Exception], outcome: str) -> None:
    with client_of(traced) as client, pytest.raises(error):
        list(chat(client, behave))
    assert traced.recording.request().attributes["pdtrace.outcome"] == outcome


def test_openai_client_that_leaves(traced: Traced) -> None:
    with client_of(traced) as client:
        stream = chat(client, "endless")
        for piece in stream:
            if piece.choices[0].delta.content:
                break
        stream.close()
    assert traced.recording.request().attributes["pdtrace.outcome"] == "cancelled"


def test_async_openai_client(traced: Traced) -> None:
    async def run() -> str:
        async with openai.AsyncOpenAI(base_url=f"{traced.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True, extra_body={"behave": "reasoning"}
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

    assert asyncio.run(run()) == "grüß 🙂 dich"
    assert len(traced.recording.request().attributes["pdtrace.token_times_ns"]) == 4


# ------------------------------------------------------------------------------- the exporter's troubles are not ours


@pytest.mark.parametrize("answer", ["down", "silent", "garbage", "refusing"])
@pytest.mark.parametrize("router", list(ROUTERS))
def test_a_receiver_in_trouble_changes_nothing(upstream: Engine, router: str, answer: str) -> None:
    from pdtrace.instrumentation import HttpExporter, Recorder, Resource
    from tests.dropins.test_proxy_app import bad_server

    said = {"down": b"", "silent": None, "garbage": b"\x00\xff garbage", "refusing": b"HTTP/1.1 400 No\r\n\r\n"}[answer]
    with bad_server(said) as receiver, contextlib.ExitStack() as opened:
        if answer == "down":
            receiver = "http://127.0.0.1:1"
        recorder = Recorder(Resource(service_name="router"), HttpExporter(receiver, timeout_s=0.3), drain_every_s=0.01)
        app = ROUTERS[router](upstream.url)
        app.add_middleware(PdtraceMiddleware, recorder=recorder)
        url = opened.enter_context(serving(app))
        for _ in range(3):
            assert ask(url, "stream")[2] == b"".join(STREAMS["stream"])
        assert until(lambda: recorder.stats().submitted == 3)
        recorder.shutdown(0.5)
        stats = recorder.stats()
        assert (stats.begun, stats.submitted, stats.exported, stats.export_failed) == (3, 3, 0, 3)


class Broken:
    """A recorder or record whose every call raises."""

    enabled = True

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is broken on purpose")


def test_a_broken_recorder_changes_nothing(upstream: Engine) -> None:
    app = starlette_router(upstream.url)
    app.add_middleware(PdtraceMiddleware, recorder=Broken())
    with serving(app) as url:
        assert ask(url, "stream")[2] == b"".join(STREAMS["stream"])


@pytest.mark.parametrize("method", ["tokens", "first_token", "set", "finish"])
def test_a_broken_record_changes_nothing(upstream: Engine, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdtrace.instrumentation.record import Record

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(Record, method, broken)
    recording = Recording()
    app = starlette_router(upstream.url)
    app.add_middleware(PdtraceMiddleware, recorder=recording.recorder)
    with serving(app) as url:
        assert ask(url, "stream")[2] == b"".join(STREAMS["stream"])
        with httpx.stream("POST", f"{url}/v1/chat/completions", json={"behave": "endless"}) as answer:
            next(answer.iter_raw())


def test_json_body_survives_reading(traced: Traced, upstream: Engine) -> None:
    """The application gets the whole request, in whatever pieces it came."""
    asked = {"behave": "unary", "messages": ["x" * 300_000]}
    pieces = [json.dumps(asked).encode()[at : at + 50_000] for at in range(0, 310_000, 50_000)]
    answer = httpx.post(f"{traced.url}/v1/chat/completions", content=iter(pieces))
    assert answer.status_code == 200
    assert upstream.seen[-1]["body"] == asked
