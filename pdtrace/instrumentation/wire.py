"""The few parts of protobuf's wire format that OTLP needs, without the library: an engine should not have to load it.

Owns bytes of attributes and fields. Knows no span.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

_DOUBLE: Final = struct.Struct("<d")
_INT64: Final = range(-(1 << 63), 1 << 63)
_ONE_BYTE_LENGTHS: Final = 0x80 - 4
_SHORT: Final = 64
_SMALL: Final = 1 << 20
_PLAIN: Final = (bool, int, float, str, list)


class Undecodable(ValueError):
    """Bytes that are no protobuf message."""


def varint(value: int) -> bytes:
    """A non-negative integer below 2**64."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def block(tag: int, content: bytes) -> bytes:
    """A length-delimited field."""
    size = len(content)
    return bytes((tag, size)) + content if size < 0x80 else bytes((tag,)) + varint(size) + content


@lru_cache(maxsize=4096)
def _key(name: str) -> bytes:
    return block(0x0A, str(name).encode("utf-8", "replace"))


def attribute(tag: int, name: str, value: Any) -> bytes:
    """A KeyValue as field ``tag``; b"" for None, which OTLP has no use for. What is no OTLP value goes as its text."""
    kind = type(value)
    if (kind is str and len(value) < _SHORT) or (kind is int and -1 < value < _SMALL):
        return _often(tag, name, value)
    return b"" if value is None else attribute_once(tag, name, value)


def attribute_once(tag: int, name: str, value: Any) -> bytes:
    """``attribute`` for a value that will not come again, as a request's id; not None."""
    key = _key(name)
    if type(value) is str:
        text = value.encode("utf-8", "replace")
        size = len(text)
        if size + len(key) < _ONE_BYTE_LENGTHS:  # most are: a third of the time
            return bytes((tag, size + len(key) + 4)) + key + bytes((0x12, size + 2, 0x0A, size)) + text
    return block(tag, key + block(0x12, any_value(value)))


@lru_cache(maxsize=8192)
def _often(tag: int, name: str, value: int | str) -> bytes:
    """Worker ids, modes, sizes of batches and the like come again and again; two megabytes at most are kept of them."""
    return attribute_once(tag, name, value)


def any_value(value: Any) -> bytes:
    """An AnyValue."""
    kind = type(value)
    if kind is str:
        return block(0x0A, value.encode("utf-8", "replace"))
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is int and value in _INT64:
        return b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if kind is float:
        return b"\x21" + _DOUBLE.pack(value)
    if kind is list or kind is tuple:
        return block(0x2A, b"".join([_element(each) for each in value]))
    if kind is bytes:
        return block(0x3A, value)
    return _unusual(value)


def _element(value: Any) -> bytes:
    """One value of an array. Times of tokens come by the thousand, hence the short ways for integers up to 34 s in ns."""
    if type(value) is int:
        if 0 <= value < 1 << 7:
            return bytes((0x0A, 2, 0x18, value))
        if 0 < value < 1 << 35:
            if value >= 1 << 28:
                return bytes((
                    0x0A, 6, 0x18, value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80,
                    value >> 21 & 0x7F | 0x80, value >> 28,
                ))  # fmt: skip
            if value >= 1 << 21:
                return bytes((
                    0x0A, 5, 0x18, value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21,
                ))  # fmt: skip
    return block(0x0A, any_value(value))


def _unusual(value: Any) -> bytes:
    """An AnyValue of what is none of Python's plain types: the plain value behind it, else its text."""
    try:
        if isinstance(value, str):  # an enumeration's member: its value, not its name
            return block(0x0A, str.encode(value, "utf-8", "replace"))
        if hasattr(value, "tolist"):  # numpy's and torch's numbers and arrays
            plain = value.tolist()
            if type(plain) in _PLAIN:
                return any_value(plain)
        elif isinstance(value, int) and int(value) in _INT64:
            return any_value(int(value))
        elif isinstance(value, float):
            return any_value(float(value))
        elif hasattr(value, "__index__") and not isinstance(value, int):
            return any_value(operator.index(value))
        return any_value(str.__str__(str(value)))
    except Exception as problem:  # noqa: BLE001 - code of the host's own types; the record must not be lost for it
        return any_value(f"<{type(value).__name__}: {type(problem).__name__}>")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of every field of a message: varints as int, everything else as bytes.

    Raises:
        Undecodable: it is no message.
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        wire_type = tag & 7
        if wire_type == 0:
            value, at = _read_varint(message, at)
            yield tag >> 3, value
            continue
        if wire_type == 2:
            size, at = _read_varint(message, at)
        elif wire_type in (1, 5):
            size = 8 if wire_type == 1 else 4
        else:
            raise Undecodable(f"wire type {wire_type}")
        if at + size > len(message):
            raise Undecodable("cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise Undecodable("cut short")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
