"""ASGI middleware for OpenAI-compatible routers and proxies: one `pdtrace.request` for each inference call.

Owns what an exchange between client and application says of the request. Reads the answer as it passes: nothing is
kept back, delayed or changed. Answer formats are openai_stream's, stamps are the recorder's.

    client --> server --> [middleware] --> application      request id and trace context go in
    client <-- server <-- [middleware] <-- application      status, content chunks, usage, ending are read

Source: ASGI specification 3.0, HTTP connection scope.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

from pdtrace.instrumentation import Record, Recorder, default_recorder
from pdtrace.instrumentation.current import Current, enter, leave
from pdtrace.instrumentation.openai_stream import AnswerReader, Ending, ending_of, outcome_of_status

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Paths of inference calls, by their last part; a mount point in front of them does not matter.
INFERENCE_PATHS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
)

_MAX_ID: Final = 256
_MAX_REQUEST_BYTES: Final = 4 << 20  # of a request body, kept to tell the model where the answer does not
_said: set[str] = set()  # reasons why answers cannot be read, each told once


class PdtraceMiddleware:
    """Wraps an ASGI application.

    Args:
        app: The application; Starlette and FastAPI give it (``app.add_middleware(PdtraceMiddleware, recorder=...)``).
        recorder: Where records go; None: the process's default one.
        paths: A POST to a path that ends with one of these is an inference call; everything else passes untouched.
    """

    def __init__(self, app: App, recorder: Recorder | None = None, *, paths: Iterable[str] = INFERENCE_PATHS) -> None:
        self.app = app
        self._recorder = recorder
        self._paths = tuple(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        exchange = self._begin(scope, receive, send)
        if exchange is None:
            await self.app(scope, receive, send)
        else:
            await exchange.serve(self.app)

    def _begin(self, scope: Scope, receive: Receive, send: Send) -> _Exchange | None:
        """None for what is not traced."""
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(self._paths):
            return None
        try:
            recorder = self._recorder or default_recorder()
            if not recorder.enabled:
                return None
            return _Exchange(recorder, scope, receive, send)
        except Exception:  # the application must be served, whatever is wrong with our telemetry
            log.warning("a request is not traced", exc_info=True)
            return None


class _Exchange:
    """One inference call: what came in, what went out, when."""

    def __init__(self, recorder: Recorder, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"traceparent", b"x-request-id")]
        own = {name: value for name, value in scope["headers"] if name in (b"traceparent", b"x-request-id")}
        request_id = own.get(b"x-request-id", b"").decode("latin-1").strip()[:_MAX_ID]
        traceparent = own.get(b"traceparent", b"").decode("latin-1") or None
        self.request_id = request_id or uuid.uuid4().hex
        self._record: Record = recorder.begin(self.request_id, traceparent=traceparent, edge=True)
        self._current = Current(self._record, self.request_id, reads_tokens=True)
        self._now_ns = self._record.clock.now_ns
        passed_on = self._record.traceparent or traceparent
        headers.append((b"x-request-id", self.request_id.encode("latin-1")))
        if passed_on:
            headers.append((b"traceparent", passed_on.encode("latin-1")))
        self._scope = {**scope, "headers": headers}
        self._receive, self._send = receive, send

        self._asking = 0  # calls of receive() that wait
        self._has_body = False  # the whole request has been read by the application
        self._request: list[bytes] | None = []  # its body, while the model may have to be read from it
        self._request_size = 0
        self._gone_ns: int | None = None  # when the client's going was noticed, before it had its answer
        self._status: int | None = None
        self._answer = AnswerReader()
        self._tokens: list[tuple[int, int]] = []  # (stamp, tokens or 0 = not known) of every content chunk
        self._finished = False
        self._broken = False  # reading failed once; the rest of the exchange passes unread

    # -------------------------------------------------------------------------------------------- the application

    async def serve(self, app: App) -> None:
        """Run the application on this exchange; whatever it raises passes through."""
        if not self._record.recording:
            receive, send = self._receive, self._send
        else:
            receive, send = self.receive, self.send
        token = enter(self._current)
        try:
            await app(self._scope, receive, send)
        except BaseException as problem:
            self._guarded(self._finish_raised, problem)
            raise
        finally:
            leave(token)
            self._guarded(self._finish_returned)
            if self._broken:
                with contextlib.suppress(Exception):
                    self._record.finish()

    async def receive(self) -> Message:
        """What the application asks for: the request's body, then the news that the client has gone."""
        self._asking += 1
        try:
            message = await self._receive()
        finally:
            self._asking -= 1
        self._guarded(self._read_received, message)
        return message

    async def send(self, message: Message) -> None:
        """Pass on first, then read: the client waits for nothing of ours."""
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and self._has_body and not self._asking and self._gone_ns is None:
            await self._ask_whether_gone()
        at_ns = self._now_ns()
        try:
            await self._send(message)
        except OSError:  # how servers say that nobody listens any more
            self._guarded(self._note_gone)
            raise
        self._guarded(self._read_sent, message, at_ns)

    async def _ask_whether_gone(self) -> None:
        """An application that never asks does not hear of a client that has gone: ask once before the end.

        Only after the request's body has been read, so nothing but a disconnect can come; it takes one turn of the loop.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # trio: no tasks without a nursery
            return
        question = asyncio.ensure_future(self._receive())
        try:
            await asyncio.sleep(0)
            if question.done() and not question.cancelled() and question.exception() is None:
                self._guarded(self._read_received, question.result())
        finally:
            question.cancel()

    # ------------------------------------------------------------------------------------------------ what it says

    def _guarded(self, read: Callable[..., None], *arguments: Any) -> None:
        if self._broken:
            return
        try:
            read(*arguments)
        except Exception:  # the exchange goes on, whatever is wrong with our reading of it
            self._broken = True
            log.warning("a request's exchange cannot be read further", exc_info=True)

    def _read_received(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._note_gone()
            return
        body = message.get("body", b"")
        self._has_body = not message.get("more_body", False)
        if self._request is not None and body:
            self._request_size += len(body)
            if self._request_size <= _MAX_REQUEST_BYTES:
                self._request.append(body)
            else:
                self._request = None

    def _note_gone(self) -> None:
        if self._gone_ns is None and not self._is_settled():
            self._gone_ns = self._now_ns()

    def _is_settled(self) -> bool:
        """Whether the client has been told how the call went: many close the connection then, before its end."""
        answer = self._answer
        return answer.complete or answer.error is not None or bool(outcome_of_status(self._status or 0))

    def _read_sent(self, message: Message, at_ns: int) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._status = message["status"]
            self._choose_reader(message.get("headers", ()))
        elif kind == "http.response.body":
            body = message.get("body", b"")
            if body:
                self._stamp(self._answer.feed(body), at_ns)
            if not message.get("more_body", False):
                self._stamp(self._answer.close(), at_ns)
                self._finish_answered(at_ns)
        elif kind in ("http.response.pathsend", "http.response.zerocopysend"):
            self._answer.unread = "the answer is sent as a file"

    def _choose_reader(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        told = {name.lower(): value.lower() for name, value in headers}
        kind = told.get(b"content-type", b"").partition(b";")[0].strip()
        encoding = told.get(b"content-encoding", b"identity").strip()
        self._answer = AnswerReader(streamed=True if kind == b"text/event-stream" else None)
        if encoding not in (b"", b"identity"):
            self._answer.ignore(f"answers are compressed ({encoding.decode('latin-1')})")

    def _stamp(self, counts: list[int], at_ns: int) -> None:
        if counts and self._gone_ns is None:
            self._tokens += [(at_ns, count) for count in counts]
        if self._answer.model:
            self._request = None  # no need to look there

    # ------------------------------------------------------------------------------------------------------ its end

    def _finish_answered(self, at_ns: int) -> None:
        self._finish(ending_of(self._status or 0, self._answer), at_ns)

    def _finish_raised(self, problem: BaseException) -> None:
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        text = f"{type(problem).__name__}: {problem}".removesuffix(": ")
        if not isinstance(problem, Exception):
            self._finish_early(Ending("cancelled", f"the request's task was ended ({text})"))
        elif isinstance(problem, TimeoutError) or "timeout" in type(problem).__name__.lower():
            self._finish_early(Ending("timed_out", text))
        else:
            self._finish_early(Ending("failed", text))

    def _finish_returned(self) -> None:
        self._finish_early(Ending("failed", "the application ended without completing its answer"))

    def _finish_early(self, ending: Ending) -> None:
        """The application is through with an answer that has no regular end; what the client was told counts more."""
        if self._is_settled():
            ending = ending_of(self._status or 0, self._answer)
        elif self._status is None and ending.outcome != "cancelled":
            self._status = 500  # what every server answers then
        self._finish(ending)

    def _finish(self, ending: Ending, at_ns: int | None = None) -> None:
        """Submit the record; only the first call counts."""
        record, answer = self._record, self._answer
        if self._finished:
            return
        self._finished = True
        if self._gone_ns is not None:
            ending = Ending("cancelled", "the client went away before its answer was complete")
        ending = self._with_legs(ending)
        if self._status is not None:
            record.set("http.response.status_code", self._status)
        model = answer.model or self._model_asked_for()
        if model:
            record.set("gen_ai.request.model", model)
        if answer.input_tokens is not None:
            record.set("gen_ai.usage.input_tokens", answer.input_tokens)
        if answer.output_tokens is not None:
            record.set("gen_ai.usage.output_tokens", answer.output_tokens)
        all_known = all(count for _, count in self._tokens)
        for stamp_ns, count in self._tokens:
            record.tokens(count if all_known else 1, stamp_ns)
        record.finish(ending.outcome, ending.error, at_ns)
        if answer.unread and answer.unread not in _said and len(_said) < 100:
            _said.add(answer.unread)
            log.warning("answers that cannot be read in full: %s; their first token may be unknown", answer.unread)

    def _with_legs(self, ending: Ending) -> Ending:
        """What is known better where the application's calls to workers are traced too (httpx_client.py)."""
        role = self._current.failed_role
        if role and ending.outcome == "ok":
            return Ending("ok_fallback", ending.error)
        if role in ("prefill", "decode") and ending.outcome == "failed":
            return Ending(f"failed_{role}", ending.error)
        return ending

    def _model_asked_for(self) -> str:
        """Refusals do not repeat the model; the request has it."""
        body, self._request = b"".join(self._request or ()), None
        try:
            asked = json.loads(body) if body else None
        except (ValueError, RecursionError):
            return ""
        model = asked.get("model") if isinstance(asked, dict) else None
        return model[:_MAX_ID] if isinstance(model, str) else ""
