"""The dimensions that TTFT may be split by: a closed list, so that no user text ever reaches SQL.

Owns names and their query parameters. The expressions themselves are in pdtrace/queries/ttft.sql.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from pdtrace.reader.contract import BadQuestion, Row
from pdtrace.reader.rows import stage_values

DIMENSIONS: Final = ("prefill_worker", "decode_worker", "link", "model", "mode", "run", "outcome")
_BUCKET: Final = re.compile(r"bucket:([1-9][0-9]{0,5})", re.ASCII)
_NS_PER_S: Final = 10**9


def cohort_parameters(by: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Query parameters for ``by``, and the columns that hold the groups' values, in the order asked.

    Raises:
        BadQuestion: a name that is no dimension, or one asked for twice.
    """
    parameters: dict[str, Any] = {f"by_{name}": False for name in DIMENSIONS}
    parameters.update(minute_ns=None, bucket_ns=None)
    columns: list[str] = []
    for name in by:
        bucket = _BUCKET.fullmatch(name)
        if name in DIMENSIONS:
            parameters[f"by_{name}"] = True
        elif name == "minute":
            parameters["minute_ns"] = 60 * _NS_PER_S
        elif bucket:
            parameters["bucket_ns"] = int(bucket[1]) * _NS_PER_S
        else:
            raise BadQuestion(
                f"cannot split by {name!r}; it can be {', '.join(DIMENSIONS)}, minute or bucket:SECONDS (1 to 999999)"
            )
        column = "bucket" if bucket else name
        if column in columns:
            raise BadQuestion(f"cannot split by {column!r} twice; name each dimension once")
        columns.append(column)
    return parameters, columns


def cohort_row(row: Row, columns: Sequence[str]) -> Row:
    """One group of ``Reader.ttft``."""
    result: Row = {column: row[column] for column in columns}
    result.update((key, row[key]) for key in ("requests", "mean_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns"))
    result["sections"] = stage_values(row, "section")
    result["p99_requests"] = row["p99_requests"]
    result["p99_mean_ns"] = row["p99_mean_ns"]
    result["p99_sections"] = stage_values(row, "p99_section")
    result["hidden"] = stage_values(row, "hidden")
    return result
