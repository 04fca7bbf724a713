"""W3C trace context in and out: https://www.w3.org/TR/trace-context/, section 3.2."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtrace.instrumentation.context import Context, parse, render
from tests.instrumentation.reading import Worker

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
BAD = [
    "",
    "00",
    "garbage",
    f"ff-{TRACE}-{SPAN}-01",  # version ff is forbidden
    f"00-{'0' * 32}-{SPAN}-01",
    f"00-{TRACE}-{'0' * 16}-01",
    f"00-{TRACE}-{SPAN}-01-more",  # version 00 ends there
    f"00-{TRACE}-{SPAN}-01-",
    f"00-{TRACE}-{SPAN}",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-0x",
    f"00-{TRACE[:-1]}-{SPAN}-01",
    f"00-{TRACE}0-{SPAN}-01",
    f"00-{TRACE}-{SPAN}0-01",
    f"0-{TRACE}-{SPAN}-01",
    f"00-{TRACE.upper()}-{SPAN}-01",  # hexadecimal digits are lower case
    f"00-{TRACE}-{SPAN.upper()}-01",
    f"\n{GOOD}",
    f"00_{TRACE}_{SPAN}_01",
    f"cc-{TRACE}-{SPAN}-01x",  # of a later version, but not separated
    f"00-{TRACE.replace('4', '٤')}-{SPAN}-01",  # a digit, but no hexadecimal one
]


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8), st.booleans())
def test_out_and_in(trace_id: bytes, span_id: bytes, sampled: bool) -> None:
    header = render(trace_id, span_id, sampled=sampled)
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", header)
    valid = any(trace_id) and any(span_id)
    assert parse(header) == (Context(trace_id, span_id, sampled) if valid else None)


@pytest.mark.parametrize("header", BAD)
def test_bad_ones_are_none(header: str) -> None:
    assert parse(header) is None


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (GOOD, True),
        (f" {GOOD}\t", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),  # only the lowest bit says sampled
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version is read as far as it is known
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_good_ones(header: str, sampled: bool) -> None:
    assert parse(header) == Context(bytes.fromhex(TRACE), bytes.fromhex(SPAN), sampled)


@given(st.one_of(st.none(), st.binary(), st.integers(), st.text()))
def test_anything_is_read_or_none(header: Any) -> None:
    assert parse(header) is None


@pytest.mark.parametrize("header", [*BAD, None, GOOD.encode(), 17])
@pytest.mark.parametrize("edge", [True, False])
def test_a_record_with_a_bad_context_starts_a_trace_of_its_own(header: Any, edge: bool) -> None:
    worker = Worker()
    record = worker.recorder.begin("r", traceparent=header, edge=edge)
    record.add("prefill", worker.clock.at_ns, worker.clock.at_ns + 5)
    record.finish(at_ns=worker.clock.at_ns + 5)
    span = worker.span("prefill")
    assert span.trace_id == record.trace_id != TRACE
    assert int(span.trace_id, 16)
    assert span.parent_id == (record.span_id if edge else "")


def test_spans_hang_under_the_caller() -> None:
    worker = Worker()
    record = worker.recorder.begin("r", traceparent=GOOD)
    record.add("prefill", worker.clock.at_ns, worker.clock.at_ns + 5)
    assert record.traceparent == GOOD  # what is called from here hangs under the same span
    record.finish()
    span = worker.span("prefill")
    assert (span.trace_id, span.parent_id) == (TRACE, SPAN)
    assert span.span_id != SPAN


def test_an_edge_puts_its_own_span_between() -> None:
    worker = Worker()
    record = worker.recorder.begin("r", traceparent=GOOD, edge=True)
    record.add("route", worker.clock.at_ns, worker.clock.at_ns + 5)
    header = record.traceparent
    record.finish(at_ns=worker.clock.at_ns + 5)
    root, route = worker.spans()
    assert (root.name, root.trace_id, root.parent_id) == ("pdtrace.request", TRACE, SPAN)
    assert (route.trace_id, route.parent_id) == (TRACE, root.span_id)
    assert header == f"00-{TRACE}-{root.span_id}-01"


def test_ids_asked_for_late_are_those_that_were_exported() -> None:
    worker = Worker()
    record = worker.recorder.begin("r", edge=True)
    record.finish()
    (root,) = worker.spans()
    assert record.traceparent == f"00-{root.trace_id}-{root.span_id}-01"


def test_no_two_spans_share_an_id() -> None:
    worker = Worker()
    for number in range(500):
        record = worker.recorder.begin(str(number), edge=True)
        for _ in range(4):
            record.add("prefill", worker.clock.at_ns, worker.clock.at_ns + 1)
        record.finish(at_ns=worker.clock.at_ns + 1)
    spans = worker.spans()
    assert len(spans) == 2500
    assert len({span.span_id for span in spans}) == 2500
    assert len({span.trace_id for span in spans}) == 500
