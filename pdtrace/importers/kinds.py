"""What kind a file is, told from its first bytes.

Owns the marks of every kind that pdtrace reads. Does not read files beyond the head it is given.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

Kind = Literal[
    "otlp.json", "otlp.varint", "otlp.u32", "dynamo.request_trace", "trtllm.perf_metrics", "client.aiperf",
    "client.vllm_bench", "client.guidellm",
]  # fmt: skip

_READS: Final = (
    "OTLP (JSON or protobuf), Dynamo request trace, TensorRT-LLM /perf_metrics, AIPerf, vLLM bench, GuideLLM"
)
_MESSAGE_LIMIT: Final = 64 * 1024 * 1024
_FIELD_1: Final = 0x0A  #: tag of field 1, length-delimited: how every non-empty OTLP request begins

#: Kind -> patterns that must all occur in the head. The first kind that fits counts.
_MARKS: Final[tuple[tuple[Kind, tuple[bytes, ...]], ...]] = (
    ("otlp.json", (rb'"resource(Spans|Logs|Metrics)"\s*:',)),
    ("dynamo.request_trace", (rb'"schema"\s*:\s*"dynamo\.request\.trace\.v1"',)),
    ("trtllm.perf_metrics", (rb'"(disagg_server_arrival_time|perf_metrics)"\s*:', rb'_time"\s*:')),
    ("client.guidellm", (rb'"guidellm_version"\s*:',)),
    ("client.vllm_bench", (rb'"num_prompts"\s*:', rb'"request_throughput"\s*:')),
    ("client.aiperf", (rb'"metadata"\s*:', rb'"metrics"\s*:', rb'"(x_request_id|x_correlation_id|session_num)"\s*:')),
)


def kind_of(head: bytes) -> Kind | None:
    """The kind of a file that begins with ``head`` (64 KiB, or all of a smaller file); None = not one we read."""
    if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return next((kind for kind, marks in _MARKS if all(re.search(mark, head) for mark in marks)), None)
    return _framing_of(head)


def _framing_of(head: bytes) -> Kind | None:
    """The framing under which more messages of ``head`` look like OTLP requests."""
    by_varint, by_u32 = _plausible_frames(head, "otlp.varint"), _plausible_frames(head, "otlp.u32")
    if not by_varint and not by_u32:
        return None
    # No message is longer than 16 MiB in practice, so a leading zero byte is a big-endian length.
    return "otlp.varint" if by_varint > by_u32 or (by_varint == by_u32 and head[0]) else "otlp.u32"


def _plausible_frames(head: bytes, kind: Kind) -> int:
    """How many messages at the beginning of ``head`` are OTLP requests if it is framed as ``kind``."""
    at = count = 0
    while at < len(head):
        size, begin = (int.from_bytes(head[at : at + 4], "big"), at + 4) if kind == "otlp.u32" else varint(head, at)
        if begin >= len(head) or not 2 <= size <= _MESSAGE_LIMIT:
            break
        if head[begin] != _FIELD_1 or not _inner_fits(head, begin, size):
            break
        count += 1
        at = begin + size
    return count


def _inner_fits(head: bytes, at: int, size: int) -> bool:
    """Whether field 1 of the message at ``at`` lies inside the message."""
    inner, begin = varint(head, at + 1)
    return inner >= 0 and begin - at + inner <= size


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The base-128 number at ``at`` and the position after it; (-1, at) if there is none of at most ten bytes."""
    number = 0
    for i in range(at, min(at + 10, len(data))):
        number |= (data[i] & 127) << 7 * (i - at)
        if data[i] < 128:
            return number, i + 1
    return -1, at


def is_one_document(head: bytes) -> bool:
    """Whether JSON that begins with ``head`` is one document over several lines, and not one value a line."""
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"[":
        return True
    first, newline, rest = text.partition(b"\n")
    if not newline or b"\n{" in text:
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return bool(rest.strip())
    return False


def why_not(head: bytes) -> str:
    """A sentence on a file that is none of the kinds."""
    if not head.strip():
        return "the file is empty"
    seen = "binary content" if b"\0" in head[:1024] else "text"
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if first[:1] in (b"{", b"["):
        keys = re.findall(rb'"([A-Za-z0-9_.]{1,40})"\s*:', first[:2000])[:5]
        seen = f"JSON with the keys {', '.join(key.decode() for key in keys)}" if keys else "JSON"
    return f"not a kind pdtrace reads: {seen}; it reads {_READS}"
