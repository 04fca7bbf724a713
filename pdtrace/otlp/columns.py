"""Arrow columns to Python lists and dicts, in bulk: strings, ids, numbers and attribute lists.

Owns the vectorised conversions. Does not know spans (columns_spans.py) nor parse protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, cast

import numpy as np
import polars as pl
import pyarrow as pa

from pdtrace.model import Value
from pdtrace.otlp.faults import cut_bytes, cut_text
from pdtrace.otlp.leaves import ProtobufLeaves

_FEW_STRINGS: Final = 64  #: below this the set-up of the vectorised way costs more than it saves


def texts(column: pa.Array) -> list[str | None]:
    """A string column as Python strings, nulls as None."""
    if len(column) < _FEW_STRINGS:
        return cast("list[str | None]", column.to_pylist())
    return cast("list[str | None]", pl.Series(column).to_list())


def repeated_texts(column: pa.Array) -> list[str]:
    """A string column without nulls and with few distinct values: equal values become one shared object.

    A shared key is hashed once, which makes the dicts built from it much cheaper.
    """
    if len(column) < _FEW_STRINGS:
        return cast("list[str]", column.to_pylist())
    encoded = column.dictionary_encode()
    distinct = np.array(encoded.dictionary.to_pylist(), dtype=object)
    return cast("list[str]", distinct[encoded.indices.to_numpy()].tolist())


def byte_lengths(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Length in bytes of each value of a string or binary column; 0 for nulls."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32, count=len(column) + column.offset + 1)
    return np.diff(offsets[column.offset :]).astype(np.int64)


def hex_ids(column: pa.Array, size_bytes: int) -> list[str]:
    """A binary column of ids as lower-case hex; fast if all have ``size_bytes`` or none has any."""
    lengths = byte_lengths(column)
    if not lengths.any():
        return [""] * len(column)
    if (lengths != size_bytes).any():
        return [raw.hex() for raw in column.to_pylist()]
    data, start = column.buffers()[2], np.frombuffer(column.buffers()[1], np.int32, 1, column.offset * 4)[0]
    text = memoryview(data)[start : start + len(column) * size_bytes].hex()
    width = 2 * size_bytes
    return [text[i : i + width] for i in range(0, len(text), width)]


def slices(items: list[Any], counts: list[int]) -> Iterator[list[Any]]:
    """``items`` cut into consecutive lists of ``counts`` items."""
    rest = iter(items)
    return (list(islice(rest, n)) for n in counts)


def attribute_dicts(column: pa.Array, leaves: ProtobufLeaves) -> list[dict[str, Value]]:
    """A column of KeyValue lists as one dict a row; the last of equal keys wins, None where no value was sent."""
    pairs = column.flatten()
    counts = column.value_lengths().to_numpy().tolist()
    key_column = pairs.field("key")
    keys = repeated_texts(key_column)
    values = _values(pairs.field("value"), keys, leaves)
    if len(keys) and byte_lengths(key_column).max() > leaves.text_limit:
        keys = [cut_text(key, leaves.text_limit, leaves.faults, "a key") for key in keys]
    rest = zip(keys, values, strict=True)
    return [dict(islice(rest, n)) for n in counts]


def _values(column: pa.StructArray, keys: list[str], leaves: ProtobufLeaves) -> list[Value]:
    strings = column.field("string_value")
    values: list[Value] = texts(strings)
    limit = leaves.text_limit
    if values and (lengths := byte_lengths(strings)).max() > limit:
        for i in np.flatnonzero(lengths > limit).tolist():
            values[i] = cut_text(values[i], limit, leaves.faults, keys[i])
    if strings.null_count == 0:
        return values
    for field in ("int_value", "double_value", "bool_value"):
        numbers = column.field(field)
        if numbers.null_count < len(numbers):
            rows = np.flatnonzero(numbers.is_valid().to_numpy(zero_copy_only=False)).tolist()
            sent = numbers.drop_null().to_numpy(zero_copy_only=False).tolist()
            for i, value in zip(rows, sent, strict=True):
                values[i] = value
    for field in ("array_value", "kvlist_value", "bytes_value"):
        raws = column.field(field)
        if raws.null_count < len(raws):
            for i in np.flatnonzero(raws.is_valid().to_numpy(zero_copy_only=False)).tolist():
                raw = raws[i].as_py()
                if field == "array_value":
                    values[i] = leaves.array(raw, keys[i])
                elif field == "kvlist_value":
                    values[i] = leaves.map(raw, keys[i])
                else:
                    values[i] = cut_bytes(raw, limit, leaves.faults, keys[i])
    return values
