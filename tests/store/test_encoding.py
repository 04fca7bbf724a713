"""Typed JSON reads back exactly, and spans and records survive the store whatever they carry."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdtrace.model import Batch, Record, Span, SpanEvent
from pdtrace.store.duckdb import DuckDBStore
from pdtrace.store.encoding import CannotEncode, canonical, dumps, dumps_all, loads
from tests.store.conformance import content

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.one_of(text, st.sampled_from(["$bytes", "$double", "$", "$$x", "$int", "null"]))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_subnormal=True),
    text,
    st.binary(max_size=8),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)
maps = st.dictionaries(keys, values, max_size=4)
times = st.integers(0, 2**63 - 1)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, NaN equal to NaN, zero and minus zero apart."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


@given(values)
def test_any_value_reads_back_exactly(value: Any) -> None:
    assert same(loads(dumps(value)), value)
    assert same(loads(canonical(value)), value)
    json.loads(dumps(value))  # and it is JSON that SQL's functions can look into


def test_what_json_has_no_word_for() -> None:
    assert dumps({"b": b"\x01", "n": math.nan, "i": -math.inf, "big": 2**70, "$k": 1}) == (
        '{"b":{"$bytes":"AQ=="},"n":{"$double":"NaN"},"i":{"$double":"-Infinity"},'
        '"big":{"$int":"1180591620717411303424"},"$$k":1}'
    )
    assert dumps([1, 1.0, True, None]) == "[1,1.0,true,null]"
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})


@pytest.mark.parametrize("value", ["\ud800", {1: 2}, object()])
def test_what_is_no_telemetry_value_is_refused(value: object) -> None:
    with pytest.raises(CannotEncode, match="a value cannot be kept"):
        dumps(value)


def test_nesting_without_end_is_refused() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(CannotEncode):
        dumps(value)


spans = st.builds(
    Span,
    trace_id=st.integers(0, 2**128 - 1).map(lambda n: f"{n:032x}"),
    span_id=st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}"),
    parent_id=st.one_of(st.just(""), st.integers(0, 2**64 - 1).map(lambda n: f"{n:016x}")),
    name=text,
    kind=st.integers(0, 5),
    start_ns=times,
    end_ns=times,
    scope=text,
    resource=maps,
    attributes=maps,
    events=st.lists(st.builds(SpanEvent, times, text, maps), max_size=2),
    links=st.lists(st.tuples(text, text), max_size=2),
    status=st.integers(0, 2),
    status_message=text,
    received_ns=times,
)
records = st.builds(Record, text, text, times, maps, text, times)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(spans, max_size=4, unique_by=lambda s: s.key), st.lists(records, max_size=3, unique_by=lambda r: r.source)
)
def test_spans_and_records_survive_the_store(given_spans: list[Span], given_records: list[Record]) -> None:
    store = DuckDBStore(":memory:")
    store.add(Batch(spans=given_spans, records=given_records))
    loaded, facts = store.load([s.trace_id for s in given_spans] + [r.source for r in given_records])
    store.close()
    assert sorted(map(content, loaded), key=repr) == sorted(map(content, given_spans), key=repr)
    by_source = {r.source: r for r in facts}
    assert by_source.keys() == {r.source for r in given_records}
    for r in given_records:
        there = by_source[r.source]
        assert same(there.body, r.body)
        assert (there.kind, there.key, there.time_ns) == (r.kind, r.key, r.time_ns)
        assert (there.trace_id, there.received_ns) == (r.trace_id, r.received_ns)


@given(st.lists(st.one_of(maps, values, text), max_size=5))
def test_many_at_once_are_written_as_each_alone(many: list[Any]) -> None:
    assert dumps_all(many) == [dumps(value) for value in many]


@pytest.mark.parametrize("value", [",\n,", "\n", {"a": "]\n,["}, {"$": 1}, {"full": "dull $"}, "null", 2**70, b"\x00"])
def test_many_at_once_keep_what_looks_like_a_border(value: Any) -> None:
    assert dumps_all([value, {"a": 1}, value]) == [dumps(value), '{"a":1}', dumps(value)]


def test_many_at_once_refuse_what_one_refuses() -> None:
    with pytest.raises(CannotEncode):
        dumps_all([{}, "\ud800"])
