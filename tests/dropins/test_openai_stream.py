"""What is a token and what is not, how an answer ended: each format as its server really sends it."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtrace.instrumentation.openai_stream import AnswerReader, Ending, ending_of, outcome_of_status


def sse(*messages: dict[str, Any] | str) -> bytes:
    texts = [m if isinstance(m, str) else json.dumps(m, ensure_ascii=False) for m in messages]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def chat(delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "tiny", "choices": [choice], **more}


def usage(prompt: int, answer: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


ROLE = chat({"role": "assistant", "content": ""})
STOP = chat({}, "stop")
USAGE = {"id": "c1", "model": "tiny", "choices": [], "usage": usage(7, 3)}


def read(stream: bytes, streamed: bool | None = None) -> tuple[list[int], AnswerReader]:
    reader = AnswerReader(streamed)
    return reader.feed(stream) + reader.close(), reader


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (chat({"content": "Hi"}), 1),
        (chat({"content": " "}), 1),
        (chat({"role": "assistant", "content": "Hi"}), 1),
        (chat({"reasoning_content": "hm"}), 1),
        (chat({"reasoning": "hm"}), 1),
        (chat({"refusal": "no"}), 1),
        (chat({"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}]}), 1),
        (chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), 1),
        (chat({"function_call": {"arguments": "{"}}), 1),
        ({"model": "tiny", "choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}, 1),
        ({"type": "response.output_text.delta", "delta": "Hi"}, 1),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, 1),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}, 1),
        ({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}}, 1),
        ({"text": "Hi", "meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "finish_reason": None}}, 1),
        (ROLE, 0),
        (STOP, 0),
        (USAGE, 0),
        (chat({"content": None, "tool_calls": []}), 0),
        (chat({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}), 0),
        ({"model": "tiny", "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}, 0),
        ({"type": "response.output_item.added", "item": {}}, 0),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 5}}}, 0),
        ({"type": "ping"}, 0),
        ({"error": {"message": "no", "code": 500}}, 0),
        ("[DONE]", 0),
        ("not json", 0),
        ("[1, 2]", 0),
        ({"choices": "what", "usage": 3}, 0),
        ({"choices": [None, 3, {"index": "x", "delta": 7}]}, 0),
    ],
)
def test_what_is_a_token(message: dict[str, Any] | str, tokens: int) -> None:
    counts, _ = read(sse(message))
    assert len(counts) == tokens


def test_a_chat_stream() -> None:
    counts, reader = read(sse(ROLE, chat({"content": "a"}), chat({"content": "b"}), STOP, USAGE, "[DONE]"))
    assert counts == [0, 0]
    assert (reader.model, reader.input_tokens, reader.output_tokens) == ("tiny", 7, 3)
    assert reader.finish_reasons == {0: "stop"}
    assert ending_of(200, reader) == Ending("ok")


def test_counts_from_a_running_usage_wait_for_what_shows_them() -> None:
    """A token that shows nothing yet (half a character) is counted with the chunk that shows it."""
    stream = sse(
        chat({"role": "assistant", "content": ""}, usage=usage(7, 0)),
        chat({"content": "a"}, usage=usage(7, 1)),
        chat({"content": ""}, usage=usage(7, 2)),
        chat({"content": "é!"}, usage=usage(7, 4)),
        chat({}, "stop", usage=usage(7, 5)),
    )
    counts, reader = read(stream)
    assert counts == [1, 3]
    assert reader.output_tokens == 5


def test_counts_of_two_choices_run_apart() -> None:
    stream = sse(
        chat({"content": "a"}, index=0, usage=usage(7, 1)),
        chat({"content": "b"}, index=1, usage=usage(7, 2)),
        chat({"content": "c"}, index=0, usage=usage(7, 4)),
    )
    assert read(stream)[0] == [1, 2, 3]


def test_counts_from_token_ids_and_logprobs() -> None:
    ids = {"choices": [{"index": 0, "delta": {"content": "ab"}, "token_ids": [1, 2]}]}
    chat_logprobs = {"choices": [{"index": 0, "delta": {"content": "ab"}, "logprobs": {"content": [{}, {}, {}]}}]}
    text_logprobs = {"choices": [{"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"]}}]}
    assert read(sse(ids, chat_logprobs, text_logprobs))[0] == [2, 3, 2]


def test_sglang_generate_is_cumulative() -> None:
    def step(text: str, tokens: int, finish: dict[str, Any] | None = None) -> dict[str, Any]:
        about = {"id": "g", "prompt_tokens": 3, "completion_tokens": tokens, "finish_reason": finish}
        return {"text": text, "meta_info": about}

    counts, reader = read(sse(step("", 0), step("a", 1), step("a b", 3), step("a b", 3, {"type": "stop"}), "[DONE]"))
    assert counts == [1, 2]
    assert (reader.input_tokens, reader.output_tokens, reader.finish_reasons) == (3, 3, {0: "stop"})


def test_responses_and_messages_streams() -> None:
    responses = sse(
        {"type": "response.created", "response": {"model": "tiny", "usage": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": "response.completed", "response": {"usage": {"input_tokens": 7, "output_tokens": 3}}},
    )
    messages = sse(
        {"type": "message_start", "message": {"model": "tiny", "usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    )
    for stream in (responses, messages):
        counts, reader = read(stream)
        assert counts == [0]
        assert (reader.model, reader.input_tokens, reader.output_tokens) == ("tiny", 7, 3)
        assert ending_of(200, reader) == Ending("ok")


@pytest.mark.parametrize("streamed", [None, False])
def test_an_answer_in_one_piece(streamed: bool | None) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "a b c"}, "finish_reason": "stop"}
    counts, reader = read(json.dumps({"model": "tiny", "choices": [choice], "usage": usage(7, 3)}).encode(), streamed)
    assert counts == []
    assert (reader.model, reader.input_tokens, reader.output_tokens, reader.streamed) == ("tiny", 7, 3, False)
    assert ending_of(200, reader) == Ending("ok")


def test_a_stream_under_the_wrong_content_type_is_read() -> None:
    counts, reader = read(b"\r\n" + sse(chat({"content": "a"}), "[DONE]"), None)
    assert (counts, reader.streamed, reader.done) == ([0], True, True)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        ({"error": {"message": "boom", "code": 500}}, "failed"),
        ({"error": {"message": "boom", "code": "503"}}, "rejected"),
        ({"error": {"message": "boom", "code": 429}}, "rejected"),
        ({"error": {"message": "boom", "code": 504}}, "timed_out"),
        ({"error": {"message": "too much", "code": 400}}, "invalid"),
        ({"object": "error", "message": "bad", "type": "BadRequestError", "code": 400}, "invalid"),
        ({"error": {"message": "x", "type": "invalid_request_error", "code": "context_length_exceeded"}}, "invalid"),
        ({"error": {"message": "This model's maximum context length is 4096 tokens."}}, "invalid"),
        ({"error": {"message": "The input (9000 tokens) is longer than the model's context length"}}, "invalid"),
        ({"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}, "rejected"),
        ({"error": {"message": "Request timed out"}}, "timed_out"),
        ({"error": "KV transfer failed"}, "failed"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "rejected"),
        ({"detail": "Not here"}, "failed"),
    ],
)
def test_errors_inside_a_200(error: dict[str, Any], outcome: str) -> None:
    """After the first token, too: an error is an error, and `[DONE]` behind it heals nothing."""
    for stream in (sse(error, "[DONE]"), sse(chat({"content": "a"}), error), json.dumps(error).encode()):
        ending = ending_of(200, read(stream)[1])
        assert ending.outcome == outcome
        assert ending.error


def test_an_error_event_that_is_no_json() -> None:
    ending = ending_of(200, read(b"event: error\ndata: worker died\n\n")[1])
    assert ending == Ending("failed", "worker died")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(400, "invalid"), (404, "invalid"), (413, "invalid"), (422, "invalid"), (429, "rejected"), (503, "rejected"),
     (529, "rejected"), (408, "timed_out"), (504, "timed_out"), (499, "cancelled"), (401, "failed"), (500, "failed"),
     (502, "failed"), (200, ""), (307, "")],
)  # fmt: skip
def test_statuses(status: int, outcome: str) -> None:
    assert outcome_of_status(status) == outcome
    if outcome:
        reader = read(b'{"error": {"message": "why", "code": 1}}')[1]
        assert ending_of(status, reader) == Ending(outcome, "why")
        assert ending_of(status, AnswerReader()) == Ending(outcome, f"HTTP {status}")


@pytest.mark.parametrize(
    ("stream", "outcome"),
    [
        (sse(chat({"content": "a"})), "failed"),  # cut off
        (sse(ROLE), "failed"),
        (b"", "failed"),
        (b": ping\n\n", "failed"),
        (sse(chat({"content": "a"}), chat({}, "abort")), "cancelled"),
        (sse(chat({"content": "a"}), chat({}, "error")), "failed"),
        (sse(chat({"content": "a"}), chat({}, "length")), "ok"),
        (sse(chat({"content": "a"}), "[DONE]"), "ok"),
        (sse(chat({"content": "a"}), chat({}, "stop"), chat({"content": "b"}, index=1)), "failed"),  # one of two cut
        (sse({"some": "format"}), "ok"),  # not known here: nothing is claimed beyond the status
    ],
)
def test_how_streams_end(stream: bytes, outcome: str) -> None:
    reader = AnswerReader(streamed=True)
    reader.feed(stream)
    reader.close()
    assert ending_of(200, reader).outcome == outcome


def test_a_huge_event_is_skipped_and_said() -> None:
    reader = AnswerReader(max_event_bytes=1000)
    counts = reader.feed(sse(chat({"content": "x" * 2000}), chat({"content": "a"}), STOP))
    assert counts == [0]
    assert "longer" in reader.unread


def test_compressed_answers_are_not_read() -> None:
    reader = AnswerReader(streamed=True)
    reader.ignore("gzip")
    assert reader.feed(sse(chat({"content": "a"}))) == reader.close() == []
    assert ending_of(200, reader) == Ending("ok")
    assert ending_of(502, reader) == Ending("failed", "HTTP 502")


STREAM = (
    sse(ROLE, chat({"content": "grüß 🙂 dich"}, usage=usage(7, 2)), chat({"reasoning": "é"}, usage=usage(7, 5)))
    + b': ping\r\n\r\nevent: x\r\ndata: {"choices":\r\ndata: [{"text": "two lines"}]}\r\n\r\n'
    + sse(STOP, USAGE, "[DONE]")
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_any_cut_gives_the_same_tokens(cuts: list[int]) -> None:
    """Also inside a character."""
    whole_counts, whole = read(STREAM)
    reader = AnswerReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    counts = [n for a, b in itertools.pairwise(edges) for n in reader.feed(STREAM[a:b])] + reader.close()
    assert counts == whole_counts == [2, 3, 0]
    for name in ("model", "input_tokens", "output_tokens", "finish_reasons", "done", "error", "unread"):
        assert getattr(reader, name) == getattr(whole, name)


@given(stream=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_garbage_never_raises(stream: bytes, cuts: list[int]) -> None:
    for prefix in (b"", b"data: ", b"{"):
        reader = AnswerReader()
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            reader.feed((prefix + stream)[start:end])
        reader.close()
        ending_of(200, reader)


TYPES = ["message_start", "message_delta", "message_stop", "content_block_delta", "response.failed", "error",
         "response.completed", "response.output_text.delta"]  # fmt: skip


@given(
    message=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(TYPES),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "delta", "usage", "error", "detail", "meta_info", "type", "index", "text",
                             "content", "tool_calls", "function", "completion_tokens", "finish_reason", "token_ids",
                             "logprobs", "message", "response", "model", "code", "object"]),
            inner, max_size=5,
        ),
        max_leaves=25,
    )
)  # fmt: skip
def test_json_of_any_shape_never_raises(message: Any) -> None:
    for body in (sse(json.dumps(message)), json.dumps(message).encode()):
        reader = AnswerReader()
        reader.feed(body)
        reader.close()
        ending_of(200, reader)
