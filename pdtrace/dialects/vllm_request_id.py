"""The names one request has in vLLM 0.32 and around it, and the one name they share.

Owns the spelling of vLLM's request ids. Does not decide which spans are one request.

A completion with header ``X-Request-Id: abc`` is ``cmpl-abc`` to the caller, ``cmpl-abc-0`` on its span (one id for
each prompt of a list), ``1_cmpl-abc-0`` for the second of n answers, and with ``-<8 hex>`` behind it inside the
engine (LMCache's session, NIXL's remote_request_id). A chat is ``chatcmpl-abc`` everywhere, without an index.
Source: captures vllm-0.32 (ids of spans, of LMCache sessions and of kv_transfer_params side by side).
"""

from __future__ import annotations

import re

from pdtrace.model import Key

_ANSWER_INDEX = re.compile(r"^\d+_")
_PROMPT_INDEX = re.compile(r"^(cmpl-.+)-\d+$")
_ENGINE_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_CALLERS_ID = re.compile(r"^(?:chat)?cmpl-(.+)$")
_REWRITTEN = "___prefill_addr_"  # vllm-router 0.1.17 puts both addresses and an id of its own there


def request_id_of_span(span_id: str) -> str:
    """The id the caller sees, of a ``gen_ai.request.id``: indices of answer and prompt stripped."""
    name = _ANSWER_INDEX.sub("", span_id)
    # Only completions carry a prompt index; a chat id that ends in "-7" is a caller's own and stays whole.
    indexed = _PROMPT_INDEX.match(name)
    return indexed.group(1) if indexed else name


def request_id_of_session(session_id: str) -> str:
    """The id the caller sees, of an engine-internal id (the same with ``-<8 hex>`` behind it)."""
    return request_id_of_span(_ENGINE_SUFFIX.sub("", session_id))


def callers_id(request_id: str) -> str:
    """The ``X-Request-Id`` inside ``cmpl-<it>``; "" where there is none or a router has replaced it."""
    match = _CALLERS_ID.match(request_id)
    return match.group(1) if match and not was_rewritten(request_id) else ""


def was_rewritten(request_id: str) -> bool:
    """True for the id that vllm-router gives to both engines in place of the caller's."""
    return _REWRITTEN in request_id


def keys_of(request_id: str) -> tuple[Key, ...]:
    """Join keys of a stripped id: itself, and the caller's own id, which a front end or a router knows it by."""
    own = callers_id(request_id)
    return (Key("request_id", request_id), *((Key("request_id", own),) if own else ()))
