"""Requests as a trace that ui.perfetto.dev opens (Chrome JSON trace events).

Owns lanes, names and the conversion to microseconds. Reads only rows of ``Reader.request``; writes no file.

Lanes of one request, from top to bottom; intervals that overlap in a lane get rows of their own:

    TTFT sections   |ingress|  prefill            |handoff|first|
    front end       |  container                               |
    router            |route|
    P               |prefill_queue|  prefill      |
    link                              |  handoff          |
    D                                                      |first_token|

Source of the format: "Trace Event Format" (Chromium), as read by Perfetto's legacy JSON importer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pdtrace.reader.contract import Row

Event = dict[str, Any]

LANES: Final = ("TTFT sections", "front end", "router", "P", "link", "D")

_LANE_OF_STAGE: Final = {
    "container": "front end",
    "ingress": "front end",
    "relay": "front end",
    "egress": "front end",
    "router_queue": "router",
    "route": "router",
    "prefill_queue": "P",
    "bootstrap": "P",
    "prefill": "P",
    "prefill_opaque": "P",
    "handoff": "link",
    "decode_queue": "D",
    "decode_opaque": "D",
    "first_token": "D",
    "recompute": "D",
}


def trace(rows: Sequence[Row]) -> dict[str, Any]:
    """The requests of ``rows`` (in full) on one time axis that starts at the earliest stamp.

    Microseconds since the epoch do not fit a double to the nanosecond, so stamps are relative to
    ``otherData.origin_ns``.
    """
    origin_ns = min((start for row in rows for start in _starts(row)), default=0)
    events: list[Event] = []
    for number, row in enumerate(rows):
        events += _request_events(row, origin_ns, first_process=number * len(LANES) + 1)
    return {"displayTimeUnit": "ms", "otherData": {"origin_ns": str(origin_ns)}, "traceEvents": events}


def microseconds(duration_ns: int) -> float:
    """Nanoseconds as the double of microseconds from which Perfetto gets the same nanosecond back.

    Perfetto truncates value * 1000 (CoerceToTs in json_utils.cc), and 1.001 * 1000 is 1000.9999999999999: such
    values are nudged up by one step, or touching intervals would overlap by 1 ns and be drawn wrongly.
    """
    value = duration_ns / 1000
    return value if int(value * 1000) >= duration_ns else math.nextafter(value, math.inf)


def lane_of(activity: Row) -> str:
    """The lane an activity is drawn in: by stage, except that work moves to the worker that did it."""
    stage, role = activity["stage"], activity.get("role") or ""
    if stage in ("prefill", "prefill_queue", "prefill_opaque") and role == "decode":
        return "D"
    if stage == "recompute" and role != "decode":
        return "P"
    return _LANE_OF_STAGE.get(stage, "front end")


def _request_events(row: Row, origin_ns: int, first_process: int) -> list[Event]:
    name = row["request_id"] or row["uid"]
    charged = row["section_list"] or row.get("section_list_to_end") or []
    sections = [(start, end, stage, {"charged_ns": end - start}) for stage, start, end in charged if end > start]
    lanes: dict[str, dict[str, list[tuple[int, int, str, Event]]]] = {lane: {} for lane in LANES}
    lanes["TTFT sections"]["to the first token" if row["section_list"] else "to the end, no first token"] = sections
    last_ns = max(row.get("last_ns") or 0, row.get("end_ns") or 0)
    for activity in row["activities"]:
        start = activity["start_ns"]
        end = activity["end_ns"] or max(last_ns, start)  # an open activity is drawn as far as anything is known
        facts = {key: activity[key] for key in _SHOWN if activity.get(key) not in (None, "", 0, False, {})}
        worker = activity.get("worker") or "unknown worker"
        lanes[lane_of(activity)].setdefault(worker, []).append((start, end, activity["stage"], facts))
    events: list[Event] = []
    for position, (lane, workers) in enumerate(lanes.items()):
        process = first_process + position
        events.append(_named("process_name", process, 0, name=f"{lane} ({name})"))
        events.append(_named("process_sort_index", process, 0, sort_index=process))
        thread = 0
        for worker, intervals in sorted(workers.items()):
            for sub, packed in enumerate(_rows_without_overlap(intervals)):
                thread += 1
                label = worker if sub == 0 else f"{worker} ({sub + 1})"
                events.append(_named("thread_name", process, thread, name=label))
                events.append(_named("thread_sort_index", process, thread, sort_index=thread))
                events += [_complete(interval, origin_ns, process, thread, lane) for interval in packed]
    return events


_SHOWN: Final = ("role", "attempt", "rank", "span_id", "dialect", "failed", "open", "detail")


def _complete(interval: tuple[int, int, str, Event], origin_ns: int, process: int, thread: int, lane: str) -> Event:
    start, end, stage, facts = interval
    at, until = microseconds(start - origin_ns), microseconds(end - origin_ns)
    length = microseconds(end - start)
    assert at <= until
    return {
        "ph": "X", "name": stage, "cat": lane, "pid": process, "tid": thread, "ts": at, "dur": length,
        "args": {"start_ns": str(start), "end_ns": str(end), **facts},
    }  # fmt: skip


def _named(kind: str, process: int, thread: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": arguments}


def _rows_without_overlap(
    intervals: Iterable[tuple[int, int, str, Event]],
) -> list[list[tuple[int, int, str, Event]]]:
    """Each interval in the first row that is free when it starts; touching ones share a row."""
    rows: list[list[tuple[int, int, str, Event]]] = []
    for interval in sorted(intervals, key=lambda item: (item[0], item[1], item[2])):
        for row in rows:
            if row[-1][1] <= interval[0]:
                row.append(interval)
                break
        else:
            rows.append([interval])
    return rows


def _starts(row: Row) -> list[int]:
    starts = [activity["start_ns"] for activity in row["activities"]]
    return [*starts, row["window"][0]]
