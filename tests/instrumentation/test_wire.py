"""Bytes of attributes and fields, against protobuf's own parser."""

from __future__ import annotations

import enum
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from pdtrace.instrumentation.wire import Undecodable, any_value, attribute, block, fields, varint
from tests.instrumentation.reading import value_of

WITH_SURROGATES = st.text(st.characters(), max_size=200)  # every code point, lone surrogates among them
LEAVES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=300),
    st.binary(max_size=300),
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=6), max_leaves=20)


def read(value: Any) -> Any:
    """What protobuf finds in the bytes of a value."""
    return value_of(AnyValue.FromString(any_value(value)))


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert read(value) == value


@given(VALUES)
def test_types_come_back(value: Any) -> None:
    back = read(value)
    assert type(back) is type(value)
    assert repr(back) == repr(value)  # True is not 1 and 1.0 is neither, inside of arrays too


@given(WITH_SURROGATES)
def test_any_text_is_valid_utf8_on_the_wire(text: str) -> None:
    assert read(text) == text.encode("utf-8", "replace").decode()


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinities(value: float) -> None:
    assert read(value) == value


def test_not_a_number_stays_one() -> None:
    assert math.isnan(read(math.nan))


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1 << 64, 10**30])
def test_integers_beyond_64_bits_go_as_text(value: int) -> None:
    assert read(value) == str(value)


class Colour(enum.IntEnum):
    """An enumeration of numbers."""

    RED = 7


class Backend(str, enum.Enum):  # noqa: UP042 - the form whose own text is "Backend.NIXL"
    """An enumeration of words, as engines write them."""

    NIXL = "nixl"


class Huge(int):
    """A number of a type of its own, too large for the wire."""


class Broken:
    """A value whose own code fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (np.int64(-5), -5),
        (np.uint64((1 << 64) - 1), str((1 << 64) - 1)),
        (np.float32(0.5), 0.5),
        (np.float64(0.25), 0.25),
        (np.bool_(True), True),
        (np.array([1, 2, 3]), [1, 2, 3]),
        (np.array([[1.5], [2.5]]), [[1.5], [2.5]]),
        (np.array(4), 4),
        (np.longdouble(2), "2.0"),  # its plain value is itself
        (Colour.RED, 7),
        (Backend.NIXL, "nixl"),
        (Huge(1 << 70), str(1 << 70)),
        ({"a": 1}, "{'a': 1}"),
        ({3}, "{3}"),
        ((1, "b", None), [1, "b", "None"]),
        (bytearray(b"x"), "bytearray(b'x')"),
        (ValueError("why"), "why"),
        (Broken(), "<Broken: RuntimeError>"),
    ],
)
def test_what_is_no_plain_value(value: Any, wanted: Any) -> None:
    back = read(value)
    assert back == wanted
    assert type(back) is type(wanted)


@given(st.text(max_size=200), VALUES)
def test_attributes_come_back(name: str, value: Any) -> None:
    (pair,) = Resource.FromString(attribute(0x0A, name, value)).attributes
    assert (pair.key, value_of(pair.value)) == (name, value)


def test_none_is_no_attribute() -> None:
    assert attribute(0x0A, "name", None) == b""


def test_a_name_that_is_no_text_is_written_as_its_text() -> None:
    (pair,) = Resource.FromString(attribute(0x0A, 17, "x")).attributes  # type: ignore[arg-type]
    assert pair.key == "17"


@given(st.integers(0, (1 << 64) - 1))
def test_varints_come_back(value: int) -> None:
    assert list(fields(b"\x18" + varint(value))) == [(3, value)]


@given(st.binary(max_size=20_000))
def test_blocks_of_every_length(content: bytes) -> None:
    assert list(fields(block(0x3A, content))) == [(7, content)]


@given(st.text(max_size=50), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False))
def test_fields_of_what_protobuf_wrote(key: str, number: int, real: float) -> None:
    pair = KeyValue(key=key, value=AnyValue(int_value=number)).SerializeToString()
    found = dict(fields(pair))
    assert found.get(1, b"") == key.encode()
    assert dict(fields(found[2])) == {3: number & (1 << 64) - 1}  # type: ignore[arg-type]
    assert [number for number, _ in fields(AnyValue(double_value=real).SerializeToString())] == [4]


@given(st.binary(max_size=60))
def test_garbage_is_read_or_refused(message: bytes) -> None:
    try:
        found = list(fields(message))
    except Undecodable:
        return
    assert all(isinstance(value, bytes) or 0 <= value < 1 << 70 for _, value in found)


@pytest.mark.parametrize("message", [b"\x08", b"\x0a\x05abc", b"\x09\x01", b"\x0b", b"\xff" * 11])
def test_what_is_cut_short_is_refused(message: bytes) -> None:
    with pytest.raises(Undecodable):
        list(fields(message))
