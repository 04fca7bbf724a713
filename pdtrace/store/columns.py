"""Rows to Arrow tables, column by column; rows that no table can hold are told apart, with the reason.

Owns the conversion. Does not know what the rows mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

Item = TypeVar("Item")

#: What building a table may raise on a bad value: out of range, not UTF-8, wrong type, not encodable.
BAD_VALUE = (pa.ArrowException, OverflowError, ValueError, TypeError, AttributeError)


def table_of_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows in the order of ``schema`` as a table; see table_of_columns."""
    return table_of_columns(columns_of_rows(rows, schema), schema)


def columns_of_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> list[Sequence[Any]]:
    """Rows turned on their side; as many columns as ``schema`` has even without a row."""
    return list(zip(*rows, strict=True)) if rows else [()] * len(schema)


def table_of_columns(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Columns in the order of ``schema`` as a table. Fields of Arrow's uuid type take hex text."""
    return pa.Table.from_arrays([_array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def good_and_bad(
    items: Sequence[Item], build: Callable[[Sequence[Item]], pa.Table]
) -> tuple[pa.Table, list[Item], list[tuple[Item, str]]]:
    """The table of all items that can be built, those items, and the others with the reason.

    One bad item must not cost its batch: when the whole does not build, every item is tried alone.
    """
    try:
        return build(items), list(items), []
    except BAD_VALUE:
        pass
    good: list[Item] = []
    bad: list[tuple[Item, str]] = []
    for item in items:
        try:
            build([item])
        except BAD_VALUE as error:
            bad.append((item, first_line(error)))
        else:
            good.append(item)
    return build(good), good, bad


def first_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    return _uuids(values) if kind == pa.uuid() else pa.array(values, kind)


def _uuids(values: Sequence[str]) -> pa.Array:
    """32 hex digits each, as Arrow's uuid type; one conversion for the whole column."""
    wrong = next((v for v in values if len(v) != 32), None)
    raw = bytes.fromhex("".join(values)) if wrong is None else b""
    if wrong is not None or len(raw) != 16 * len(values):
        raise ValueError(f"a trace id is 32 hex digits, not {wrong!r}")
    stored = pa.Array.from_buffers(pa.binary(16), len(values), [None, pa.py_buffer(raw)])
    return pa.ExtensionArray.from_storage(pa.uuid(), stored)
