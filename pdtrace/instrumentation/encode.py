"""Records to OTLP bytes: what the drainer does instead of building spans.

Owns the meaning of a record's events (which stage runs when) and the bytes of its spans. A span is put together from
pieces that are the same for all spans of its kind and one struct.pack of what differs. Does not send.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from operator import le
from typing import Any, Final

from pdtrace.instrumentation.record import BEGIN, END, NEXT, SET, WHOLE, Record, new_id
from pdtrace.instrumentation.stages import STAGES
from pdtrace.instrumentation.wire import attribute, attribute_once, block, varint

SCOPE: Final = "pdtrace"
_KNOWN: Final = frozenset(STAGES)
_LAST_NS: Final = (1 << 63) - 1
_INTERNAL, _SERVER = 1, 2
_ERROR_OUTCOMES: Final = ("failed", "timed_out")

# Field tags of opentelemetry.proto.trace.v1.Span.
_ATTRIBUTE, _STATUS = 0x4A, 0x7A


class Problems:
    """What a record said that makes no sense, by kind; counted, never raised."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, kind: str, count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count


#: A stage span in the making: a list, because an object costs four times as much.
_STAGE, _START, _END, _ATTEMPT, _ATTRIBUTES, _FAILED = range(6)
_Span = list[Any]


class _Own(dict[str, Any]):
    """Attributes that were made here."""


def encode(records: Sequence[Record], resource: Mapping[str, Any], problems: Problems) -> tuple[bytes, int]:
    """One ExportTraceServiceRequest with the spans of finished records, and how many spans those are."""
    spans: list[bytes] = []
    for record in records:
        _spans_of(record, spans, problems)
    scope_spans = block(0x0A, block(0x0A, SCOPE.encode())) + b"".join(spans)
    body = block(0x0A, _resource(resource)) + block(0x12, scope_spans)
    return block(0x0A, body), len(spans)


def encode_state(state: str, at_ns: int, resource: Mapping[str, Any]) -> bytes:
    """One ExportLogsServiceRequest: event ``pdtrace.worker.state`` at a Unix time."""
    stamp = struct.pack("<Q", at_ns)
    record = (
        b"\x09" + stamp + b"\x59" + stamp + b"\x10\x09" + block(0x1A, b"INFO")
        + attribute(0x32, "pdtrace.worker.state", state) + block(0x62, b"pdtrace.worker.state")
    )  # fmt: skip
    scope_logs = block(0x0A, block(0x0A, SCOPE.encode())) + block(0x12, record)
    return block(0x0A, block(0x0A, _resource(resource)) + block(0x12, scope_logs))


def encode_counters(counters: Mapping[str, int], start_ns: int, now_ns: int, resource: Mapping[str, Any]) -> bytes:
    """One ExportMetricsServiceRequest: cumulative sum ``pdtrace.instrumentation.records`` by what became of them."""
    points = b"".join(
        block(0x0A, attribute(0x3A, "pdtrace.instrumentation.fate", fate)
              + struct.pack("<BQBQBq", 0x11, start_ns, 0x19, now_ns, 0x31, count))
        for fate, count in counters.items()
    )  # fmt: skip
    metric = (
        block(0x0A, b"pdtrace.instrumentation.records")
        + block(0x1A, b"{record}")
        + block(0x3A, points + b"\x10\x02\x18\x01")
    )
    scope_metrics = block(0x0A, block(0x0A, SCOPE.encode())) + block(0x12, metric)
    return block(0x0A, block(0x0A, _resource(resource)) + block(0x12, scope_metrics))


def _resource(attributes: Mapping[str, Any]) -> bytes:
    return b"".join([attribute(0x0A, name, value) for name, value in attributes.items()])


def _text(tag: int, value: Any) -> bytes:
    """A string field; a host may hand in the exception itself."""
    return block(tag, str(value).encode("utf-8", "replace"))


# ------------------------------------------------------------------------------------------------------- one record


def _spans_of(record: Record, out: list[bytes], problems: Problems) -> None:
    shared = attribute_once(_ATTRIBUTE, "pdtrace.request.id", record.request_id) if record.request_id else b""
    trace_id = record.trace_id_bytes
    own = record.span_id_bytes
    if record.edge:
        _root(record, trace_id, own, shared, out, problems)
    parent = b"\x22\x08" + own if record.edge or record.parent is not None else b""
    common = parent + shared + b"\x0a\x10" + trace_id + b"\x12\x08"
    span_id = int.from_bytes(new_id(7), "little")  # and the next ones: eight bytes hold them all
    if not _stamps_only(record, common, span_id, out):
        _any_stages(record, common, span_id, out, problems)


def _stamps_only(record: Record, common: bytes, span_id: int, out: list[bytes]) -> bool:
    """The usual record, whose stages follow each other and say nothing more: all its spans in one struct.pack.

    Returns:
        False, and nothing done, for a record that needs more than that.
    """
    events, offset_ns = record.events, record.offset_ns
    if offset_ns is None or len(events) != record.said or len(events) % 3:
        return False
    codes = events[::3]  # the first event of another length stands in its place too, so it is seen here
    count = len(codes)
    if codes.count(NEXT) != count or not count:
        return False
    starts = [at_ns + offset_ns for at_ns in events[2::3]]
    ends = starts[1:]
    ends.append(record.end_ns + offset_ns)
    if starts[0] <= 0 or ends[-1] > _LAST_NS or not all(map(le, starts, ends)):
        return False
    form = (tuple(events[1::3]), record.attempt, len(common), 0)
    pack, constants = _shapes.get(form) or _shape(form)
    if pack is None:
        return False
    fields = constants.copy()
    fields[1::_FIELDS] = [common] * count
    fields[2::_FIELDS] = range(span_id + 1, span_id + 1 + count)
    fields[4::_FIELDS] = starts
    fields[6::_FIELDS] = ends
    out.append(pack(*fields))
    return True


def _any_stages(record: Record, common: bytes, span_id: int, out: list[bytes], problems: Problems) -> None:
    offset_ns, wall_ns = record.offset_ns, record.clock.wall_ns
    record_end_ns = record.end_ns
    for stage, start_ns, end_ns, attempt, attributes, failed in stage_spans(record, problems):
        if end_ns is None:
            end_ns = record_end_ns
        if offset_ns is None:
            start_ns, end_ns = wall_ns(start_ns), wall_ns(end_ns)
        else:
            start_ns += offset_ns
            end_ns += offset_ns
        if not 0 < start_ns <= end_ns <= _LAST_NS and not makes_sense(start_ns, end_ns, problems):
            continue  # the usual answer costs no call
        rest = b""
        if attributes:
            rest = b"".join([attribute(_ATTRIBUTE, name, value) for name, value in attributes.items()])
        if failed:
            rest += block(_STATUS, _text(0x12, failed) + b"\x18\x02")
        span_id += 1
        form = ((stage,), attempt, len(common), len(rest))
        pack, constants = _shapes.get(form) or _shape(form)
        assert pack is not None
        out.append(pack(constants[0], common, span_id, b"9", start_ns, b"A", end_ns) + rest)


# Spans of one shape (which stages, which attempt, how long the parts that differ are) are packed by one struct.pack. Of
# each span, in an order that puts together what stays together: its length, name, kind and attempt, the same for all of
# its kind; parent, request id and trace id, the same for all of its record; span id; tag and start; tag and end. What
# only this span says follows.
_FIELDS: Final = 7
_Form = tuple[tuple[str, ...], int, int, int]
_Shape = tuple[Callable[..., bytes] | None, list[Any]]
_MOST_SHAPES: Final = 8192
_shapes: dict[_Form, _Shape] = {}


def _shape(form: _Form) -> _Shape:
    """struct.pack and its arguments for a form, with holes for what differs; None if a stage is not known."""
    stages, attempt, common, rest = form
    made: _Shape = None, []
    if _KNOWN.issuperset(stages):
        layout, constants = "<", []
        for stage in stages:
            named = (
                block(0x2A, f"pdtrace.{stage}".encode()) + bytes((0x30, _INTERNAL))
                + attribute(_ATTRIBUTE, "pdtrace.attempt", int(attempt))
            )  # fmt: skip
            first = b"\x12" + varint(len(named) + common + 8 + 1 + 8 + 1 + 8 + rest) + named
            layout += f"{len(first)}s{common}sQ1sQ1sQ"
            constants += [first, b"", 0, b"9", 0, b"A", 0]
        made = struct.Struct(layout).pack, constants
    if len(_shapes) >= _MOST_SHAPES:  # attribute texts of every length: begin again
        _shapes.clear()
    _shapes[form] = made
    return made


def stage_spans(record: Record, problems: Problems) -> list[_Span]:
    """Events to intervals, in the order they began. What has no end yet ends with the record."""
    spans: list[_Span] = []
    latest: dict[str, _Span] = {}
    running: list[_Span] = []
    attempt = record.attempt
    if record.said is not None and record.said < len(record.events):
        problems.add("said_after_finish", (len(record.events) - record.said) // 3)  # only stamps get this far
    events = islice(record.events, record.said)
    for code in events:
        stage, what = next(events), next(events)
        known = stage in _KNOWN
        if not known:
            problems.add("unknown_stage")
        if code <= BEGIN:
            if code == NEXT and running:
                running.pop()[_END] = what
            if known:
                span = latest[stage] = [stage, what, None, attempt, None, ""]
                spans.append(span)
                running.append(span)
        elif code == END:
            for span in reversed(running):
                if span[_STAGE] == stage:
                    span[_END] = what
                    running.remove(span)
                    break
            else:
                problems.add("end_without_begin")
        elif code == WHOLE:
            end_ns, attributes, of_attempt, failed = next(events), next(events), next(events), next(events)
            if known:
                span = [stage, what, end_ns, attempt if of_attempt is None else of_attempt, attributes, failed]
                latest[stage] = span
                spans.append(span)
        else:
            value = next(events) if code == SET else None
            if stage not in latest:
                problems.add("stage_never_begun")
            elif code == SET:
                span = latest[stage]
                if type(span[_ATTRIBUTES]) is not _Own:  # the host's own dict must not change
                    span[_ATTRIBUTES] = _Own(span[_ATTRIBUTES] or ())
                span[_ATTRIBUTES][what] = value
            else:
                latest[stage][_FAILED] = what or "failed"
    return spans


_REQUEST: Final = block(0x2A, b"pdtrace.request") + bytes((0x30, _SERVER)) + b"\x39"
_IDS: Final = struct.Struct(f"<2s16s2s8s{len(_REQUEST)}sQ1sQ")


def _root(record: Record, trace_id: bytes, span_id: bytes, shared: bytes, out: list[bytes], problems: Problems) -> None:
    """The request's own span."""
    unix_ns = record.clock.wall_ns if record.offset_ns is None else record.offset_ns.__add__
    start_ns, end_ns = unix_ns(record.start_ns), unix_ns(record.end_ns)
    if not 0 < start_ns <= end_ns <= _LAST_NS and not makes_sense(start_ns, end_ns, problems):
        return
    told = _IDS.pack(b"\x0a\x10", trace_id, b"\x12\x08", span_id, _REQUEST, start_ns, b"A", end_ns) + shared
    if record.parent is not None:
        told += b"\x22\x08" + record.parent.span_id
    for name, value in request_attributes(record, unix_ns, start_ns).items():
        told += attribute(_ATTRIBUTE, name, value)
    if is_failure(record):
        told += block(_STATUS, _text(0x12, record.error) + b"\x18\x02")
    out.append(block(0x12, told))


def request_attributes(record: Record, unix_ns: Callable[[int], int], start_ns: int) -> dict[str, Any]:
    """What an edge record knows of its request, by name; ``start_ns`` is Unix time of its start."""
    known = {} if record.attributes is None else dict(record.attributes)
    first_ns = record.first_ns
    said = record.token_stamps
    stamps = [] if said is None else sorted(said)
    if stamps and first_ns is None:
        first_ns = stamps[0][0]
    if not isinstance(said, list) and (left_out := getattr(said, "left_out", 0)):
        known["pdtrace.token_times_left_out"] = left_out
    elif stamps:
        known["pdtrace.token_times_ns"] = [max(0, unix_ns(at_ns) - start_ns) for at_ns, _ in stamps]
        if any(count != 1 for _, count in stamps):
            known["pdtrace.token_counts"] = [count for _, count in stamps]
    if first_ns is not None:
        known["pdtrace.first_token_ns"] = unix_ns(first_ns)
    if record.outcome:
        known["pdtrace.outcome"] = record.outcome
    if record.error:
        known["pdtrace.error"] = record.error
    return known


def is_failure(record: Record) -> bool:
    """Whether its request span has status ERROR."""
    return str(record.outcome).startswith(_ERROR_OUTCOMES)


def makes_sense(start_ns: int, end_ns: int, problems: Problems) -> bool:
    """Whether a span can have these Unix times; counted if it cannot."""
    if 0 < start_ns <= end_ns <= _LAST_NS:
        return True
    problems.add("ends_before_it_begins" if end_ns < start_ns else "time_out_of_range")
    return False
