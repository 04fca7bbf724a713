"""Requests, sections and activities as three Parquet files, for notebooks and other tools.

Owns the columns of the files. Asks any Reader, so a local store and a running service export alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from pdtrace.reader.contract import Filters, Reader, Row
from pdtrace.stages import STAGES

#: Requests held in memory at a time.
CHUNK: Final = 500

_TEXTS: Final = pa.list_(pa.string())

REQUESTS: Final = pa.schema(
    [("uid", pa.string()), ("request_id", pa.string()), ("trace_ids", _TEXTS), ("model", pa.string()),
     ("run", pa.string()), ("outcome", pa.string()), ("mode", pa.string()), ("t0_ns", pa.int64()),
     ("t1_ns", pa.int64()), ("end_ns", pa.int64()), ("ttft_ns", pa.int64()), ("ttft_basis", pa.string()),
     ("prefill_worker", pa.string()), ("decode_worker", pa.string()), ("input_tokens", pa.int64()),
     ("output_tokens", pa.int64()), ("cached_tokens", pa.int64()), ("attempts", pa.int64()),
     ("stitched_by", pa.string()), ("warnings", _TEXTS)]
    + [(f"section_{stage}_ns", pa.int64()) for stage in STAGES]
    + [(f"hidden_{stage}_ns", pa.int64()) for stage in STAGES]
    + [(f"saving_{stage}_ns", pa.int64()) for stage in STAGES]
)  # fmt: skip

SECTIONS: Final = pa.schema(
    [("uid", pa.string()), ("position", pa.int32()), ("stage", pa.string()), ("start_ns", pa.int64()),
     ("end_ns", pa.int64())]
)  # fmt: skip

ACTIVITIES: Final = pa.schema(
    [("uid", pa.string()), ("stage", pa.string()), ("start_ns", pa.int64()), ("end_ns", pa.int64()),
     ("worker", pa.string()), ("role", pa.string()), ("attempt", pa.int32()), ("rank", pa.string()),
     ("span_id", pa.string()), ("dialect", pa.string()), ("failed", pa.bool_()), ("open", pa.bool_()),
     ("detail_json", pa.string())]
)  # fmt: skip


def write(reader: Reader, filters: Filters, folder: Path) -> list[Path]:
    """Write requests.parquet, sections.parquet and activities.parquet into ``folder`` (made if missing).

    A section or saving column is null where the stage does not occur or cannot be known. Returns the paths.

    Raises:
        OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "requests.parquet", folder / "sections.parquet", folder / "activities.parquet"]
    with (
        pq.ParquetWriter(paths[0], REQUESTS, compression="zstd") as requests,
        pq.ParquetWriter(paths[1], SECTIONS, compression="zstd") as sections,
        pq.ParquetWriter(paths[2], ACTIVITIES, compression="zstd") as activities,
    ):
        for rows in _chunks(reader.requests(filters)):
            full = reader.details([row["uid"] for row in rows])
            requests.write_table(_table([_flat(row) for row in full], REQUESTS))
            sections.write_table(_table([part for row in full for part in _sections(row)], SECTIONS))
            activities.write_table(_table([part for row in full for part in _activities(row)], ACTIVITIES))
    return paths


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]


def _table(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema)


def _flat(row: Row) -> dict[str, Any]:
    flat = {name: row.get(name) for name in REQUESTS.names[:20]}
    flat["t0_ns"], flat["t1_ns"] = row["window"]
    for prefix, key in (("section", "sections"), ("hidden", "hidden"), ("saving", "saving")):
        flat |= {f"{prefix}_{stage}_ns": ns for stage, ns in (row.get(key) or {}).items()}
    return flat


def _sections(row: Row) -> Iterator[dict[str, Any]]:
    for position, (stage, start_ns, end_ns) in enumerate(row["section_list"]):
        yield {"uid": row["uid"], "position": position, "stage": stage, "start_ns": start_ns, "end_ns": end_ns}


def _activities(row: Row) -> Iterator[dict[str, Any]]:
    for activity in row["activities"]:
        detail = activity.get("detail")
        yield {
            **{name: activity.get(name) for name in ACTIVITIES.names[1:-1]},
            "uid": row["uid"],
            "end_ns": activity["end_ns"] or None,
            "detail_json": orjson.dumps(detail, default=str).decode() if detail else None,
        }
