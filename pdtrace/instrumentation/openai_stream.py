"""What an OpenAI-compatible answer says, read as it passes: content chunks, usage, model, how it ended.

Owns the formats of the answers, streamed or whole. Knows nothing of HTTP, clocks or records.

Not tokens: a role-only first chunk, a usage chunk, a finish chunk, `[DONE]`. Tokens: content, reasoning, refusals, tool
calls, a text completion's text. A chunk may hold several; how many is known only if the server says so.

Sources: OpenAI API reference (chat completions, completions, responses); vLLM and SGLang, whose chunks may carry
`reasoning_content` or `reasoning`, `token_ids` and a running usage, and SGLang's own /generate; Anthropic's messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pdtrace.instrumentation.sse import MAX_EVENT_BYTES, Event, SseReader

#: The most of an answer in one piece that is kept to be read at its end.
MAX_ANSWER_BYTES: Final = 8 << 20
_MAX_TEXT: Final = 500

_INVALID: Final = frozenset((400, 404, 413, 422))
_REJECTED: Final = frozenset((429, 503, 529))
_TIMED_OUT: Final = frozenset((408, 504))
_CLIENT_CLOSED: Final = 499

#: Words of an error without a number, by what they mean; the first line that fits counts.
_WORDS: Final = (
    (
        "invalid",
        re.compile(r"invalid_?request|bad_?request|context_length_exceeded|not_?found|unprocessable", re.IGNORECASE),
    ),
    ("rejected", re.compile(r"rate_?limit|overloaded|unavailable|too_?many_?requests|queue is full", re.IGNORECASE)),
    ("timed_out", re.compile(r"time_?out|timed out|deadline", re.IGNORECASE)),
    (
        "invalid",
        re.compile(
            r"maximum context length|max_model_len|context (window|length)"
            r"|(prompt|input)\b.{0,80}\b(too long|longer than|exceeds)",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
)

_DELTA_TEXTS: Final = ("reasoning_content", "reasoning", "refusal", "audio")
_STREAM_EVENT: Final = re.compile(r"response\.[a-z_.]+\.delta")  # the responses API: one event type a kind of content
_WHITE: Final = b" \t\r\n\xef\xbb\xbf"


class Ending(NamedTuple):
    """How an answer ended, in the words of the outcome ledger."""

    outcome: str
    error: str = ""


def outcome_of_status(status: int) -> str:
    """The ledger's word for an HTTP status; "" for what is no refusal and no failure (1xx to 3xx)."""
    if status < 400:
        return ""
    if status in _INVALID:
        return "invalid"
    if status in _REJECTED:
        return "rejected"
    if status in _TIMED_OUT:
        return "timed_out"
    return "cancelled" if status == _CLIENT_CLOSED else "failed"


def outcome_of_error(code: object, words: str) -> str:
    """The ledger's word for an error object: by its number if it has an HTTP status, else by its words."""
    number = int(code) if isinstance(code, str) and code.isdigit() else code
    if isinstance(number, int) and 400 <= number < 600:
        return outcome_of_status(number)
    return next((outcome for outcome, pattern in _WORDS if pattern.search(words)), "failed")


class AnswerReader:
    """Reads one answer; bytes in as they pass, facts out as attributes.

    Args:
        streamed: True: server-sent events; False: one JSON value; None: told by the first byte (routers are seen that
            stream under `application/json`).
    """

    __slots__ = (
        "_foreign", "_ignored", "_pending_count", "_seen_tokens", "_size", "_sse", "_started", "_whole", "done", "error",
        "finish_reasons", "input_tokens", "model", "output_tokens", "recognised", "unread",
    )  # fmt: skip

    def __init__(self, streamed: bool | None = None, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.model = ""
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finish_reasons: dict[int, str] = {}  #: choice -> reason; "" = has not finished
        self.error: Ending | None = None  #: an error object, in the stream or in the body
        self.done = False  #: `[DONE]` or its like was seen
        self.recognised = False  #: something in a known format was seen
        self.unread = ""  #: why (a part of) the answer could not be read, in words
        self._started = streamed is not None
        self._sse: SseReader | None = SseReader(max_event_bytes) if streamed is not False else None
        self._ignored = False
        self._foreign = False  # an event in no known format was seen
        self._whole: list[bytes] = []
        self._size = 0
        self._seen_tokens: dict[int, int] = {}  # choice -> tokens that a running usage has told so far
        self._pending_count = 0  # tokens of chunks that showed nothing, to go with the next one that does

    @property
    def streamed(self) -> bool:
        """Whether the answer comes as server-sent events; meaningful after the first byte."""
        return self._sse is not None

    @property
    def complete(self) -> bool:
        """Whether the client of a stream has all it waits for: what follows is at most usage and an empty end."""
        return self.streamed and (self.done or (bool(self.finish_reasons) and all(self.finish_reasons.values())))

    def ignore(self, why: str) -> None:
        """Read nothing of this answer, for a reason in words."""
        self.unread = why
        self._ignored = True

    def feed(self, chunk: bytes) -> list[int]:
        """One number for each content chunk in ``chunk``: its tokens, or 0 where the server does not say."""
        if self._ignored:
            return []
        if not self._started:
            begin = chunk.lstrip(_WHITE)
            if not begin:
                return []
            self._started = True
            if begin[:1] in b"{[":
                self._sse = None
        if self._sse is None:
            self._keep(chunk)
            return []
        return self._read_events(self._sse.feed(chunk))

    def close(self) -> list[int]:
        """At the end of the answer: read what is left."""
        if self._ignored:
            return []
        if self._sse is not None:
            counts = self._read_events(self._sse.close())
            if self._foreign and not self.recognised:
                self.unread = "the stream is in no format that is known here"
            return counts
        body, self._whole = b"".join(self._whole), []
        if self._size > MAX_ANSWER_BYTES:
            self.unread = f"an answer in one piece is longer than {MAX_ANSWER_BYTES >> 20} MiB"
        elif body:
            self._read_whole(body)
        return []

    def _keep(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= MAX_ANSWER_BYTES:
            self._whole.append(bytes(chunk))
        else:
            self._whole.clear()

    # ------------------------------------------------------------------------------------------------- streamed

    def _read_events(self, events: Sequence[Event]) -> list[int]:
        counts: list[int] = []
        for event in events:
            if event.data is None:
                self.unread = "an event is longer than is kept of one"
                continue
            if event.data[:6] == b"[DONE]":
                self.done = self.recognised = True
                continue
            message = _json(event.data)
            if isinstance(message, dict):
                count = self._read_message(message, event.name)
                if count is not None:
                    counts.append(count)
            elif event.name == "error":
                self._read_error({"message": event.data.decode(errors="replace")})
            self._foreign = self._foreign or not self.recognised
        return counts

    def _read_message(self, message: dict[str, Any], event_name: str) -> int | None:
        """None for what shows the user nothing, else the tokens shown (0 = not known)."""
        choices = message.get("choices")
        if (not isinstance(choices, list) or event_name or message.get("error")) and self._read_refusal(
            message, event_name
        ):
            return None
        if isinstance(choices, list):
            self.recognised = True
            if not self.model:
                self._read_model(message)
            visible = False
            for choice in choices:
                if isinstance(choice, dict) and self._read_choice(choice):
                    visible = True
            count = self._count(message, choices)
            if visible:
                return self._shown(count)
            self._pending_count += count
            return None
        if isinstance(message.get("meta_info"), dict):
            return self._read_generate(message)
        kind = message.get("type")
        return self._read_typed(message, kind) if isinstance(kind, str) else None

    def _shown(self, count: int) -> int:
        if count:
            count, self._pending_count = count + self._pending_count, 0
        return count

    def _read_choice(self, choice: dict[str, Any]) -> bool:
        index = _index(choice)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reasons[index] = reason
        else:
            self.finish_reasons.setdefault(index, "")
        if choice.get("text"):
            return True
        delta = choice.get("delta")
        return isinstance(delta, dict) and _is_content(delta)

    def _count(self, message: dict[str, Any], choices: Sequence[Any]) -> int:
        """Tokens that a chunk holds, if its server says so in one of the known ways; 0 = not known."""
        usage = message.get("usage")
        running = self._read_usage(usage) if isinstance(usage, dict) else None
        by_ids = by_logprobs = 0
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            ids, probabilities = choice.get("token_ids"), choice.get("logprobs")
            if isinstance(ids, list):
                by_ids += len(ids)
            if isinstance(probabilities, dict):
                tokens = probabilities.get("content") or probabilities.get("tokens")
                by_logprobs += len(tokens) if isinstance(tokens, list) else 0
        if by_ids:
            return by_ids
        if running is not None and len(choices) == 1:  # vLLM: the choice's own running count, not the request's
            index = _index(choices[0])
            before, self._seen_tokens[index] = self._seen_tokens.get(index, 0), running
            return max(running - before, 0)
        return by_logprobs

    def _read_generate(self, message: dict[str, Any]) -> int | None:
        """SGLang's /generate: the whole text so far, and a count of its tokens."""
        self.recognised = True
        about = message["meta_info"]
        tokens = self._read_usage(about)
        reason = about.get("finish_reason")
        if isinstance(reason, dict):
            reason = reason.get("type")
        self.finish_reasons[0] = reason if isinstance(reason, str) and reason else self.finish_reasons.get(0, "")
        before, self._seen_tokens[0] = self._seen_tokens.get(0, 0), tokens or 0
        grown = (tokens or 0) - before
        if grown > 0 and message.get("text"):
            return self._shown(grown)
        self._pending_count += max(grown, 0)
        return None

    def _read_typed(self, message: dict[str, Any], kind: str) -> int | None:
        """The responses API and Anthropic's messages: every event names its type."""
        if _STREAM_EVENT.fullmatch(kind):
            self.recognised = True
            return 0 if message.get("delta") else None
        if kind == "content_block_delta":
            self.recognised = True
            delta = message.get("delta")
            delta = delta if isinstance(delta, dict) else {}
            return 0 if any(delta.get(part) for part in ("text", "partial_json", "thinking")) else None
        if kind in (
            "message_start",
            "response.created",
            "response.completed",
            "response.incomplete",
            "response.failed",
        ):
            self._read_object(message.get("message") or message.get("response") or {})
            self.done = self.done or kind in ("response.completed", "response.incomplete")
        elif kind == "message_delta":
            self.recognised = True
            delta = message.get("delta")
            self._read_object(message | (delta if isinstance(delta, dict) else {}))
        elif kind == "message_stop":
            self.done = self.recognised = True
        return None

    # ---------------------------------------------------------------------------------------------- in one piece

    def _read_whole(self, body: bytes) -> None:
        message = _json(body)
        if isinstance(message, list) and message:
            message = message[0]
        if not isinstance(message, dict):
            self.unread = "an answer is neither JSON nor a stream of events"
        elif not self._read_refusal(message, ""):
            self._read_object(message)

    def _read_object(self, message: object) -> None:
        """Facts of a whole answer of any of the formats."""
        if not isinstance(message, dict):
            return
        self._read_model(message)
        if isinstance(message.get("error"), dict):
            self._read_error(message["error"])
        usage = message.get("usage")
        about = message.get("meta_info")
        for told in (usage, about):
            if isinstance(told, dict):
                self.recognised = True
                self._read_usage(told)
        choices = message.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self.recognised = True
                self._read_choice(choice)
        reason = message.get("stop_reason")
        if isinstance(reason, str) and reason:
            self.finish_reasons[0] = reason

    # ------------------------------------------------------------------------------------------------ common parts

    def _read_model(self, message: dict[str, Any]) -> None:
        model = message.get("model")
        if not self.model and isinstance(model, str):
            self.model = model[:_MAX_TEXT]

    def _read_usage(self, usage: dict[str, Any]) -> int | None:
        """Take over what is told; the tokens of the answer so far."""
        prompt = _number(usage, "prompt_tokens", "input_tokens")
        answer = _number(usage, "completion_tokens", "output_tokens")
        self.input_tokens = self.input_tokens if prompt is None else prompt
        self.output_tokens = self.output_tokens if answer is None else answer
        return answer

    def _read_refusal(self, message: dict[str, Any], event_name: str) -> bool:
        """Whether ``message`` is an error instead of an answer."""
        error = message.get("error")
        if isinstance(error, dict):
            self._read_error(error)
        elif isinstance(error, str) and error:
            self._read_error({**message, "message": error})
        elif message.get("object") == "error" or event_name == "error" or message.get("type") == "error":
            self._read_error(message)  # vLLM before 0.10, SGLang
        elif "detail" in message and "choices" not in message:
            self._read_error({"message": _text(message["detail"]), "code": message.get("code")})  # FastAPI's own
        else:
            return False
        return True

    def _read_error(self, error: Mapping[str, Any]) -> None:
        self.recognised = True
        if self.error is not None:
            return  # what follows the first error is its consequence
        text = _text(error.get("message") or error.get("type") or error.get("code") or "an error without words")
        words = " ".join(str(error.get(part) or "") for part in ("type", "code", "message"))
        self.error = Ending(outcome_of_error(error.get("code"), words[: 4 * _MAX_TEXT]), text)


def ending_of(status: int, answer: AnswerReader) -> Ending:
    """How an answer that came to its regular end turned out: the status counts first, then what the answer says."""
    refused = outcome_of_status(status)
    if refused:
        return Ending(refused, answer.error.error if answer.error else f"HTTP {status}")
    if answer.error is not None:
        return answer.error
    if status < 200 or status >= 300:
        return Ending("")
    reasons = set(answer.finish_reasons.values())
    if "abort" in reasons:
        return Ending("cancelled", "the engine aborted the request")
    if "error" in reasons:
        return Ending("failed", "the engine finished the request with an error")
    if not answer.streamed or answer.complete or answer.unread:
        return Ending("ok")
    if not answer.recognised:
        return Ending("failed", "the stream ended without an answer")
    return Ending("failed", "the stream ended without a finish reason and without [DONE]")


def _index(choice: object) -> int:
    index = choice.get("index") if isinstance(choice, dict) else 0
    return index if isinstance(index, int) else 0


def _is_content(delta: dict[str, Any]) -> bool:
    """Whether a chat delta shows the user anything: text, reasoning, a tool call, sound."""
    if delta.get("content") or any(delta.get(part) for part in _DELTA_TEXTS):
        return True
    calls = delta.get("tool_calls")
    return (isinstance(calls, list) and any(map(_is_call, calls))) or _is_call({"function": delta.get("function_call")})


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and bool(function.get("name") or function.get("arguments"))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return None


def _number(told: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = told.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63:
            return value
    return None


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:_MAX_TEXT]
