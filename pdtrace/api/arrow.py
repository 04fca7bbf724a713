"""Lists of rows as an Arrow IPC stream, and back.

Owns the column types and which callers asked for the stream. Does not know what the rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson
import pyarrow as pa

from pdtrace.api.encode import to_json
from pdtrace.reader.contract import Row

ARROW: Final = "application/vnd.apache.arrow.stream"


def to_arrow(rows: Sequence[Row]) -> bytes:
    """Rows as one Arrow IPC stream.

    A column is int64, double, bool or text; lists and objects are JSON text, and their field carries the metadata
    ``encoding: json``. A column without any value is of type null.
    """
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    fields: list[pa.Field] = []
    columns: list[pa.Array] = []
    for name in names:
        values = [row.get(name) for row in rows]
        nested = any(isinstance(value, dict | list | tuple) for value in values)
        if nested:
            values = [None if value is None else to_json(value).decode() for value in values]
        column = pa.array(values)
        columns.append(column)
        fields.append(pa.field(name, column.type, metadata={"encoding": "json"} if nested else None))
    table = pa.Table.from_arrays(columns, schema=pa.schema(fields))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_arrow(body: bytes) -> list[Row]:
    """The rows of ``to_arrow``, JSON columns parsed again."""
    table = pa.ipc.open_stream(body).read_all()
    rows: list[Row] = table.to_pylist()
    nested = [field.name for field in table.schema if (field.metadata or {}).get(b"encoding") == b"json"]
    for row in rows:
        for name in nested:
            if row[name] is not None:
                row[name] = orjson.loads(row[name])
    return rows


def wants_arrow(accept: str) -> bool:
    """Whether an Accept header names the Arrow stream type."""
    return any(part.partition(";")[0].strip().lower() == ARROW for part in accept.split(","))
