"""The JSON rows of `pdtrace requests`: a contract that other programs read.

Owns the keys, their order, and when a key is left out. Does not ask the reader.
"""

from __future__ import annotations

from typing import Final

from pdtrace.reader.contract import Row

#: In this order; further keys of the reader's row follow.
KEYS: Final = (
    "request_id", "trace_ids", "model", "outcome", "mode", "window", "ttft_ns", "ttft_basis", "ttft_other",
    "prefill_worker", "decode_worker", "input_tokens", "output_tokens", "cached_tokens", "attempts", "stitched_by",
    "sections", "sections_to_end", "hidden", "saving", "warnings",
)  # fmt: skip

#: What a row of a list has beyond KEYS; the rest of a request in full belongs to `pdtrace trace` alone.
FURTHER: Final = ("uid", "run", "t0_ns", "end_ns", "last_ns", "http_status", "error")


def contract_row(row: Row) -> Row:
    """``row`` with the contract's keys first; sections_to_end only where there was no first token."""
    ordered = {name: row[name] for name in KEYS if name in row}
    if row["window"][1] is not None:
        ordered.pop("sections_to_end", None)
    return ordered | {name: value for name, value in row.items() if name not in KEYS}


def summary_row(row: Row) -> Row:
    """The row of a request in full as a list shows it."""
    return {name: value for name, value in contract_row(row).items() if name in KEYS or name in FURTHER}
