"""How the fields of one encoding become Python values: ids to hex, numbers to int, AnyValues to plain objects.

Owns the Leaves contract and its protobuf form. Does not know spans, logs or points (walk_*.py) nor JSON
(json_leaves.py).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from pdtrace.model import Value
from pdtrace.otlp.faults import Faults, cut_bytes, cut_text
from pdtrace.otlp.wire import ANY_ARRAY, ANY_MAP, KEY_VALUE

TOO_DEEP: Final = "<nested deeper than pdtrace keeps>"
UNREADABLE: Final = "<not a readable protobuf value>"

Pair = tuple[str, Value]

#: Values that are opened, which may leave faults (TOO_DEEP and UNREADABLE are strings) and give what can be changed.
_OPENED: Final = ("array_value", "kvlist_value")

#: Attributes of up to this many bytes are remembered by their bytes, this many of them in each thread that decodes.
_SHORT_BYTES: Final = 256
_MOST_KNOWN: Final = 20_000


class Leaves(Protocol):
    """Field readers of one body. They raise BadField if one item must go, Undecodable if the whole body must."""

    faults: Faults
    text_limit: int

    def hex_id(self, raw: Any) -> str:
        """An id as lower-case hex, whatever its length."""

    def integer(self, raw: Any) -> int:
        """A 64-bit integer; absent is 0."""

    def number(self, raw: Any) -> float:
        """A double."""

    def enum(self, raw: Any, prefix: str) -> int:
        """An enum's number; ``prefix`` names the enum, e.g. "SPAN_KIND_"."""

    def present(self, message: Any, field: str) -> bool:
        """Whether an optional or oneof field was sent."""

    def text(self, raw: Any, what: str) -> str:
        """A string within the limit; absent is ""."""

    def value(self, any_value: Any, name: str) -> Value:
        """An AnyValue as a Python object; ``name`` says whose, for messages."""

    def attributes(self, key_values: Any) -> dict[str, Value]:
        """KeyValues as a dict; the last of equal keys wins."""


class ProtobufLeaves:
    """Leaves of messages of the strict wire view."""

    def __init__(self, faults: Faults, text_limit: int, depth: int) -> None:
        self.faults = faults
        self.text_limit = text_limit
        self._depth = depth

    def hex_id(self, raw: bytes) -> str:
        """Bytes to hex."""
        return raw.hex()

    def integer(self, raw: int) -> int:
        """Integers are integers already."""
        return raw

    def number(self, raw: float) -> float:
        """Doubles are floats already."""
        return raw

    def enum(self, raw: int, prefix: str) -> int:
        """Enums are open: numbers of later schema versions stay as they are."""
        return raw

    def present(self, message: Any, field: str) -> bool:
        """Presence as protobuf keeps it."""
        return bool(message.HasField(field))

    def text(self, raw: str, what: str) -> str:
        """Cut if too long."""
        return raw if len(raw) * 4 <= self.text_limit else cut_text(raw, self.text_limit, self.faults, what)

    def attributes(self, key_values: Iterable[bytes]) -> dict[str, Value]:
        """All KeyValues; a KeyValue without a value is None. Raises DecodeError on one that is not protobuf."""
        return dict(self.pairs(key_values))

    def pairs(self, key_values: Iterable[bytes]) -> Iterator[Pair]:
        """Key and value of every KeyValue; to be used up before another body is read in this thread."""
        known = _of_thread.pairs if self.text_limit >= _SHORT_BYTES else _Pairs()
        known.leaves = self
        return map(known.__getitem__, key_values)

    def value(self, any_value: Any, name: str, level: int = 1) -> Value:
        """One AnyValue; arrays and maps are opened level by level down to the depth limit."""
        kind = any_value.WhichOneof("value")
        if kind is None:
            return None
        raw = getattr(any_value, kind)
        if kind == "string_value":
            return self.text(raw, name)
        if kind == "bytes_value":
            return cut_bytes(raw, self.text_limit, self.faults, name)
        if kind == "array_value":
            return self.array(raw, name, level)
        if kind == "kvlist_value":
            return self.map(raw, name, level)
        return raw

    def array(self, raw: bytes, name: str, level: int = 1) -> Value:
        """A serialised ArrayValue as a list, or a marker if it cannot be opened."""
        opened = self._open(ANY_ARRAY, raw, name, level)
        return opened if isinstance(opened, str) else [self.value(v, name, level + 1) for v in opened.values]

    def map(self, raw: bytes, name: str, level: int = 1) -> Value:
        """A serialised KeyValueList as a dict, or a marker if it cannot be opened."""
        opened = self._open(ANY_MAP, raw, name, level)
        if isinstance(opened, str):
            return opened
        return {self.text(kv.key, "a key"): self.value(kv.value, name, level + 1) for kv in opened.values}

    def _open(self, message: Any, raw: bytes, name: str, level: int) -> Any:
        if level > self._depth:
            self.faults.add("attribute", f"values nested deeper than {self._depth} levels were left out", name)
            return TOO_DEEP
        try:
            return message.FromString(raw)
        except DecodeError:
            self.faults.add("attribute", "an array or map that is not valid protobuf (or not UTF-8) was left out", name)
            return UNREADABLE


class _Pairs(dict[bytes, Pair]):
    """Key and value by the bytes of a KeyValue, read when they are first seen.

    Only short scalars are kept: none is cut (a cut must be counted each time) and none can be changed by who gets it.
    """

    leaves: ProtobufLeaves

    def __missing__(self, raw: bytes) -> Pair:
        key_value, leaves = KEY_VALUE.FromString(raw), self.leaves
        key, any_value = key_value.key, key_value.value
        pair = (sys.intern(leaves.text(key, "a key")), leaves.value(any_value, key))
        if len(raw) <= _SHORT_BYTES <= leaves.text_limit and any_value.WhichOneof("value") not in _OPENED:
            if len(self) >= _MOST_KNOWN:
                self.clear()
            self[raw] = pair
        return pair


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.pairs = _Pairs()


_of_thread: Final = _OfThread()
