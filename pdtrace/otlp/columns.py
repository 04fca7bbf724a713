"""Arrow columns to Python lists and dicts, in bulk: strings, ids, numbers and attribute lists.

Owns the vectorised conversions. Does not know spans (columns_spans.py) nor parse protobuf.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from pdtrace.model import Value
from pdtrace.otlp.leaves import ProtobufLeaves


def repeated_texts(column: pa.Array) -> list[str]:
    """A string column without nulls and with few distinct values: equal values become one shared object.

    A shared string is hashed once, which makes looking it up much cheaper.
    """
    return list(map(sys.intern, column.to_pylist()))


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
    return (list(islice(rest, n)) if n else [] for n in counts)


def attribute_dicts(column: pa.Array, leaves: ProtobufLeaves) -> list[dict[str, Value]]:
    """A column of lists of serialised KeyValues as one dict a row; the last of equal keys wins."""
    pairs = leaves.pairs(column.flatten().to_pylist())
    return [dict(islice(pairs, n)) for n in column.value_lengths().to_numpy().tolist()]
