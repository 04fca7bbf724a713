"""vLLM's request ids: one request, many spellings."""

import pytest

from pdtrace.dialects.vllm_request_id import callers_id, keys_of, request_id_of_session, request_id_of_span

ROUTED = "cmpl-___prefill_addr_127.0.0.1:28101___decode_addr_127.0.0.1:28201_74397932cbfd46728fcc829e4ae575e4"


@pytest.mark.parametrize(
    ("on_span", "request_id"),
    [
        ("cmpl-cli-1-0001-0", "cmpl-cli-1-0001"),
        ("cmpl-cli-1-0001-17", "cmpl-cli-1-0001"),  # the 18th prompt of a list
        ("2_cmpl-cli-1-0001-0", "cmpl-cli-1-0001"),  # the third of n answers
        ("chatcmpl-abc-7", "chatcmpl-abc-7"),  # a chat has no prompt index: the caller's id ends in -7
        ("1_chatcmpl-abc-7", "chatcmpl-abc-7"),
        ("0fe2c5a0-7f0a-4c60-9ee1-1c27f3b1d9d8", "0fe2c5a0-7f0a-4c60-9ee1-1c27f3b1d9d8"),
        ("cmpl-lonely", "cmpl-lonely"),
        (f"{ROUTED}-0", ROUTED),
    ],
)
def test_the_indices_of_answer_and_prompt_are_stripped_and_nothing_else(on_span, request_id):
    assert request_id_of_span(on_span) == request_id


def test_a_session_carries_the_span_id_and_eight_hex_digits():
    assert request_id_of_session("cmpl-cli-4-0001-0-b5ac70c5") == "cmpl-cli-4-0001"
    assert request_id_of_session("chatcmpl-abc-7-b5ac70c5") == "chatcmpl-abc-7"
    assert request_id_of_session("0_cmpl-cli-4-0001-0-b5ac70c5") == "cmpl-cli-4-0001"


def test_the_callers_own_id_is_known_unless_a_router_replaced_it():
    assert callers_id("cmpl-cli-1-0001") == "cli-1-0001"
    assert callers_id("chatcmpl-abc") == "abc"
    assert callers_id(ROUTED) == ""
    assert callers_id("0fe2c5a0") == ""


def test_keys_name_the_request_and_the_callers_id():
    assert [(k.kind, k.value, k.scope) for k in keys_of("cmpl-abc")] == [
        ("request_id", "cmpl-abc", ""),
        ("request_id", "abc", ""),
    ]
    assert [k.value for k in keys_of(ROUTED)] == [ROUTED]
