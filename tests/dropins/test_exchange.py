"""The middleware against single ASGI messages: who ended the exchange, and when, decides its outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pdtrace.instrumentation.asgi import PdtraceMiddleware
from pdtrace.instrumentation.current import current_record, use_record
from tests.dropins.engine import DONE, ERROR, ROLE, STOP, USAGE, WORDS, chunk
from tests.dropins.recording import Recording, Span

Message = dict[str, Any]
SSE = [(b"Content-Type", b"text/event-stream")]
START: Message = {"type": "http.response.start", "status": 200, "headers": SSE}
GONE: Message = {"type": "http.disconnect"}
ASKED: Message = {"type": "http.request", "body": b'{"model": "m"}', "more_body": False}


def part(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


END = part(b"", more=False)


class Server:
    """Plays the server: gives what it was told to, keeps what it is sent, and stays silent after that."""

    def __init__(self, *messages: Message, send_fails_after: int = 1000) -> None:
        self.messages = list(messages)
        self.sent: list[Message] = []
        self._fails_after = send_fails_after

    async def receive(self) -> Message:
        if self.messages:
            return self.messages.pop(0)
        return await asyncio.Future()  # nothing ever comes

    async def send(self, message: Message) -> None:
        if len(self.sent) >= self._fails_after:
            raise OSError("the client has closed")
        self.sent.append(message)


def scope(**more: Any) -> Message:
    return {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], **more}


App = Callable[[Any, Any, Any], Awaitable[None]]


def run(app: App, server: Server, *, raises: type[BaseException] | None = None, **more: Any) -> Span | None:
    """Serve one request; the request span, if there is one."""
    recording = Recording(background=False)
    middleware = PdtraceMiddleware(app, recording.recorder)

    async def serve() -> None:
        await asyncio.wait_for(middleware(scope(**more), server.receive, server.send), 5)

    if raises is None:
        asyncio.run(serve())
    else:
        with pytest.raises(raises):
            asyncio.run(serve())
    spans = recording.spans("pdtrace.request")
    assert len(spans) <= 1
    return spans[0] if spans else None


def outcome(span: Span | None) -> str:
    assert span is not None
    return str(span.attributes["pdtrace.outcome"])


def saying(*messages: Message, read: bool = True) -> App:
    """An application that reads its request, says these messages, and never asks whether the client is there."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if read:
            await receive()
        for message in messages:
            await send(message)

    return app


def test_every_message_passes_as_it_is() -> None:
    messages = [START, *map(part, (ROLE, *WORDS, STOP, DONE)), END]
    server = Server(ASKED)
    assert outcome(run(saying(*messages), server)) == "ok"
    assert len(server.sent) == len(messages)
    assert all(sent is said for sent, said in zip(server.sent, messages, strict=True))


def test_the_record_ends_with_the_answer_and_not_with_what_runs_behind_it() -> None:
    recording = Recording(background=False)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await saying(START, part(WORDS[0] + STOP), END)(scope, receive, send)
        assert outcome(recording.request()) == "ok"  # exported while the background task still runs
        raise RuntimeError("in a background task")

    async def serve() -> None:
        server = Server(ASKED)
        await PdtraceMiddleware(app, recording.recorder)(scope(), server.receive, server.send)

    with pytest.raises(RuntimeError, match="background"):
        asyncio.run(serve())
    assert outcome(recording.request()) == "ok"


def test_an_application_that_never_asks_does_not_hide_a_client_that_has_gone() -> None:
    unary = part(b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}', more=False)
    plain = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    assert outcome(run(saying(plain, unary), Server(ASKED, GONE))) == "cancelled"
    assert outcome(run(saying(plain, unary), Server(ASKED))) == "ok"
    assert outcome(run(saying(START, part(WORDS[0]), END), Server(ASKED, GONE))) == "cancelled"


def test_no_part_of_an_unread_request_is_taken_away() -> None:
    body = [{"type": "http.request", "body": b"a", "more_body": True}, {"type": "http.request", "body": b"b"}]
    server = Server(*body, GONE)
    assert outcome(run(saying(START, part(WORDS[0] + STOP), END, read=False), server)) == "ok"
    assert len(server.messages) == 3


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ([ROLE], "cancelled"),
        ([ROLE, WORDS[0]], "cancelled"),
        ([ROLE, WORDS[0], STOP], "ok"),  # all is said; many clients close here
        ([ROLE, WORDS[0], DONE], "ok"),
        ([ROLE, WORDS[0], STOP, USAGE, DONE], "ok"),
        ([ROLE, WORDS[0], ERROR], "failed"),  # the client left because of the error
    ],
)
def test_a_client_that_leaves_before_or_after_it_was_told(before: list[bytes], wanted: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        for data in before:
            await send(part(data))
        assert (await receive())["type"] == "http.disconnect"

    assert outcome(run(app, Server(ASKED, GONE))) == wanted


def test_tokens_that_nobody_gets_are_not_counted() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await send(part(WORDS[0]))
        await receive()
        await send(part(WORDS[1] + STOP))
        await send(END)

    span = run(app, Server(ASKED, GONE))
    assert span is not None
    assert outcome(span) == "cancelled"
    assert len(span.attributes["pdtrace.token_times_ns"]) == 1


def test_a_server_that_says_so_by_an_error() -> None:
    server = Server(ASKED, send_fails_after=2)
    assert outcome(run(saying(START, part(WORDS[0]), part(WORDS[1])), server, raises=OSError)) == "cancelled"


def raising(problem: BaseException, *messages: Message) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await saying(*messages)(scope, receive, send)
        raise problem

    return app


@pytest.mark.parametrize(
    ("problem", "messages", "wanted", "error"),
    [
        (ValueError("boom"), [], "failed", "ValueError: boom"),
        (ValueError("boom"), [START, part(WORDS[0])], "failed", "ValueError: boom"),
        (ValueError("boom"), [START, part(WORDS[0] + STOP)], "ok", None),
        (TimeoutError(), [START], "timed_out", "TimeoutError"),
        (asyncio.CancelledError(), [START], "cancelled", "the request's task was ended (CancelledError)"),
        (ExceptionGroup("", [ValueError("inner")]), [START], "failed", "ValueError: inner"),
    ],
)
def test_an_application_that_raises(
    problem: BaseException, messages: list[Message], wanted: str, error: str | None
) -> None:
    span = run(raising(problem, *messages), Server(ASKED), raises=type(problem))
    assert span is not None
    assert outcome(span) == wanted
    assert span.attributes.get("pdtrace.error") == error
    status = 500 if not messages else 200
    assert span.attributes["http.response.status_code"] == status


def test_an_application_that_just_stops() -> None:
    span = run(saying(START, part(WORDS[0])), Server(ASKED))
    assert outcome(span) == "failed"


def test_a_redirect_is_no_outcome() -> None:
    moved = {"type": "http.response.start", "status": 307, "headers": [(b"location", b"/x")]}
    span = run(saying(moved, END), Server(ASKED))
    assert span is not None
    assert "pdtrace.outcome" not in span.attributes


def test_counts_only_if_every_chunk_tells() -> None:
    def usage(tokens: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 1, "completion_tokens": tokens}}

    told = [chunk({"content": "a"}, **usage(2)), chunk({"content": "b"}, **usage(5))]
    span = run(saying(START, *map(part, (*told, STOP)), END), Server(ASKED))
    assert span is not None
    assert span.attributes["pdtrace.token_counts"] == [2, 3]
    span = run(saying(START, *map(part, (*told, WORDS[0], STOP)), END), Server(ASKED))
    assert span is not None
    assert "pdtrace.token_counts" not in span.attributes
    assert len(span.attributes["pdtrace.token_times_ns"]) == 3


def test_what_is_not_traced_is_handed_on_untouched() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    others = [
        {"type": "websocket", "path": "/v1/chat/completions", "headers": []},
        {"type": "lifespan"},
        scope(path="/v1/models"),
        scope(method="GET"),
    ]
    recording = Recording(background=False)
    server = Server()
    receive, send = server.receive, server.send
    for other in others:
        asyncio.run(PdtraceMiddleware(app, recording.recorder)(other, receive, send))
        assert seen.pop() == (other, receive, send)
    recording.recorder.enabled = False
    asyncio.run(PdtraceMiddleware(app, recording.recorder)(scope(), receive, send))
    assert seen.pop() == (scope(), receive, send)
    assert recording.spans() == []


def test_a_mounted_path_and_paths_of_ones_own() -> None:
    assert run(saying(START, part(STOP), END), Server(ASKED), path="/serve/v1/completions") is not None
    recording = Recording(background=False)
    server = Server(ASKED)
    app = PdtraceMiddleware(saying(START, part(STOP), END), recording.recorder, paths=["/chat"])
    asyncio.run(app(scope(path="/my/chat"), server.receive, server.send))  # type: ignore[arg-type]
    assert outcome(recording.request()) == "ok"


def test_stages_stamped_in_the_application_hang_under_the_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        record = current_record()
        with record.stage("route"):
            await asyncio.sleep(0)
        await asyncio.create_task(in_a_task())
        await asyncio.to_thread(in_a_thread)
        await saying(START, part(WORDS[0] + STOP), END)(scope, receive, send)

    async def in_a_task() -> None:
        with current_record().stage("router_queue"):
            pass

    def in_a_thread() -> None:
        with current_record().stage("prefill_opaque"):
            pass

    recording = Recording(background=False)
    server = Server(ASKED)
    asyncio.run(PdtraceMiddleware(app, recording.recorder)(scope(), server.receive, server.send))
    root = recording.request()
    children = [span for span in recording.spans() if span is not root and span.name != "pdtrace.request"]
    assert [span.name for span in children] == ["pdtrace.route", "pdtrace.router_queue", "pdtrace.prefill_opaque"]
    assert {(span.trace_id, span.parent_id) for span in children} == {(root.trace_id, root.span_id)}
    assert not current_record().recording


def test_requests_side_by_side_keep_apart() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        mine = dict(scope["headers"])[b"x-request-id"].decode()
        for _ in range(5):
            await asyncio.sleep(0)
            assert current_record().request_id == mine
        await saying(START, part(WORDS[0] + STOP), END)(scope, receive, send)

    recording = Recording(background=False)
    middleware = PdtraceMiddleware(app, recording.recorder)

    async def serve(number: int) -> None:
        server = Server(ASKED)
        await middleware(scope(headers=[(b"x-request-id", b"r%d" % number)]), server.receive, server.send)

    async def all_of_them() -> None:
        await asyncio.gather(*map(serve, range(50)))

    asyncio.run(all_of_them())
    ids = {span.attributes["pdtrace.request.id"] for span in recording.spans("pdtrace.request")}
    assert ids == {f"r{number}" for number in range(50)}


def test_sampled_out_requests_pass_the_context_on_and_leave_nothing() -> None:
    seen: list[dict[bytes, bytes]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope["headers"]))
        assert receive == server.receive
        await saying(START, part(WORDS[0]), END)(scope, receive, send)

    recording = Recording(background=False, sample=0.0)
    server = Server(ASKED)
    headers = [(b"traceparent", b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-01")]
    asyncio.run(PdtraceMiddleware(app, recording.recorder)(scope(headers=headers), server.receive, server.send))
    assert seen[0][b"traceparent"] == b"00-" + b"ab" * 16 + b"-" + b"cd" * 8 + b"-00"
    assert seen[0][b"x-request-id"]
    assert recording.spans() == []


def test_odd_headers_are_survived() -> None:
    headers = [(b"x-request-id", b"\xff" * 1000), (b"traceparent", b"\xff\x00"), (b"x-request-id", b" ")]
    span = run(saying(START, part(WORDS[0] + STOP), END), Server(ASKED), headers=headers)
    assert span is not None
    assert 0 < len(span.attributes["pdtrace.request.id"]) <= 256


def test_compressed_answers_are_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdtrace.instrumentation.asgi._said", set())
    zipped = {**START, "headers": [*SSE, (b"content-encoding", b"br")]}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            span = run(saying(zipped, part(b"\x1b\x00"), END), Server(ASKED))
            assert outcome(span) == "ok"
            assert "pdtrace.first_token_ns" not in span.attributes  # type: ignore[union-attr]
    assert [record.message for record in caplog.records if "compressed (br)" in record.message] != []
    assert len([record for record in caplog.records if "compressed" in record.message]) == 1


def test_a_record_can_be_current_without_the_middleware() -> None:
    recording = Recording(background=False)
    record = recording.recorder.begin("r", edge=True)
    with use_record(record):
        current_record().set("gen_ai.request.model", "m")
    record.finish("ok")
    assert recording.request().attributes["gen_ai.request.model"] == "m"

    async def in_a_generator() -> Any:
        with use_record(record):
            yield current_record()

    async def left_in_another_context() -> None:
        generator = in_a_generator()
        await asyncio.create_task(generator.__anext__())
        with pytest.raises(StopAsyncIteration):
            await asyncio.create_task(generator.__anext__())

    asyncio.run(left_in_another_context())
