"""The rule alone, for other tools: JSON lines in, JSON lines out (`pdtrace charge`).

Owns the checks of that format. The rule is in rule.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from pdtrace.charge.rule import CODE_OF_STAGE, Activities, charge
from pdtrace.stages import ACTIVITY_STAGES, STAGES

_INT64 = range(-(1 << 63), 1 << 63)


class BadLine(ValueError):
    """A line that is not a chargeable request; the message says what is wrong and what would be right."""


def charge_lines(lines: Iterable[str]) -> Iterator[dict[str, Any] | BadLine]:
    """Charge one request per line.

    Args:
        lines: JSON objects {id, window: [t0, t1], activities: [{stage, start, end}]}; integers in any one unit.
            Blank lines are skipped.

    Yields:
        {id, sections: [[stage, start, end], ...], hidden: {stage: length}} in input order, or a BadLine (not raised,
        so that the other lines are still answered).
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _charge_line(line)
            except BadLine as error:
                yield BadLine(f"line {number}: {error}")


def _charge_line(line: str) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadLine(f"not JSON ({error}); expected one object per line") from error
    if not isinstance(request, dict):
        raise BadLine(f"a JSON {type(request).__name__}, expected an object with id, window and activities")
    window = request.get("window")
    if not isinstance(window, list) or len(window) != 2:
        raise BadLine("window must be [t0, t1], two integers")
    t0, t1 = (_integer(value, "window") for value in window)
    if t1 < t0:
        raise BadLine(f"window ends at {t1}, before its start at {t0}")
    if t1 - t0 not in _INT64:
        raise BadLine("window is longer than 64 bits of its unit")
    listed = request.get("activities", [])
    if not isinstance(listed, list):
        raise BadLine("activities must be a list of {stage, start, end}")
    stages, starts, ends = [], [], []
    for at, activity in enumerate(listed):
        if not isinstance(activity, dict):
            raise BadLine(f"activity {at} must be an object {{stage, start, end}}")
        stage = activity.get("stage")
        if not isinstance(stage, str) or stage not in CODE_OF_STAGE:
            raise BadLine(f"activity {at}: unknown stage {stage!r}; one of {', '.join(ACTIVITY_STAGES)}")
        start = _integer(activity.get("start"), f"activity {at}: start")
        end = _integer(activity.get("end"), f"activity {at}: end")
        if end < start:
            raise BadLine(f"activity {at} ({stage}) ends at {end}, before its start at {start}")
        # Clipped here in Python integers: a stamp far outside the window must not overflow a subtraction.
        stages.append(CODE_OF_STAGE[stage])
        starts.append(min(max(start, t0), t1) - t0)
        ends.append(min(max(end, t0), t1) - t0)
    charged = charge(
        np.zeros(1, dtype=np.int64),
        np.array([t1 - t0], dtype=np.int64),
        Activities(
            np.array([0, len(stages)], dtype=np.int64),
            np.array(stages, dtype=np.int8),
            np.array(starts, dtype=np.int64),
            np.array(ends, dtype=np.int64),
        ),
    )
    return {
        "id": request.get("id"),
        "sections": [
            [STAGES[stage], t0 + start, t0 + end]
            for stage, start, end in zip(
                charged.stage.tolist(), charged.start_ns.tolist(), charged.end_ns.tolist(), strict=True
            )
        ],
        "hidden": {STAGES[code]: value for code, value in enumerate(charged.hidden_ns[0].tolist()) if value},
    }


def _integer(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadLine(f"{name} must be an integer, got {value!r}")
    if value not in _INT64:
        raise BadLine(f"{name} must fit in 64 bits, got {value}")
    return value
