"""The Requests table and its export: rows as people read them, in the view's time zone.

Owns columns and text. The page owns controls; the reader owns filtering and order.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from pdtrace.stages import STAGES
from pdtrace_dashboard.charts import row_bar
from pdtrace_dashboard.format import clock_time, duration, known, share, short
from pdtrace_dashboard.palette import by_group
from pdtrace_dashboard.words import OUTCOME_IN_WORDS

Row = dict[str, Any]


def charged(row: Row) -> dict[str, int]:
    """Stage -> ns: the sections, or without a first token the time to the end."""
    return row.get("sections") or row.get("sections_to_end") or {}


def table(rows: Sequence[Row], zone: str) -> list[Row]:
    """One display row a request, in the order given; bars share one scale."""
    longest_ns = max((sum(charged(row).values()) for row in rows), default=0)
    return [
        {
            f"arrived ({zone})": clock_time(row["t0_ns"], zone),
            "request": row["request_id"],
            "TTFT": duration(row["ttft_ns"]),
            "where it went": row_bar.data_url(charged(row), longest_ns),
            "most in": most(charged(row)),
            "outcome": OUTCOME_IN_WORDS.get(row["outcome"], row["outcome"]),
            "mode": row["mode"],
            "prefill worker": short(known(row["prefill_worker"])),
            "decode worker": short(known(row["decode_worker"])),
            "tokens in": row["input_tokens"],
            "tokens out": row["output_tokens"],
            "attempts": row["attempts"],
            "model": known(row["model"]),
            "warnings": ", ".join(row.get("warnings") or []),
        }
        for row in rows
    ]


def most(sections: dict[str, int]) -> str:
    """The largest group and its share of the whole: "D queue 71 %"."""
    groups = by_group(sections)
    if not groups:
        return "unknown"
    top = max(groups, key=lambda name: groups[name])
    return f"{top} {share(groups[top], sum(groups.values()))}"


def to_csv(rows: Sequence[Row], zone: str) -> str:
    """The same requests for a spreadsheet: Unix ns and wall clock of ``zone``, exact ns a stage, unknown empty."""
    out = io.StringIO()
    plain = [
        "uid", "request_id", "outcome", "mode", "model", "ttft_ns", "ttft_basis", "prefill_worker", "decode_worker",
        "input_tokens", "output_tokens", "cached_tokens", "attempts",
    ]  # fmt: skip
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([f"arrived ({zone})", "t0_ns", *plain, *(f"{stage}_ns" for stage in STAGES), "warnings"])
    for row in rows:
        sections = row.get("sections") or {}
        writer.writerow(
            [
                clock_time(row["t0_ns"], zone),
                row["t0_ns"],
                *("" if row.get(name) is None else row[name] for name in plain),
                *(sections.get(stage, 0) if sections else "" for stage in STAGES),
                " ".join(row.get("warnings") or []),
            ]
        )
    return out.getvalue()
