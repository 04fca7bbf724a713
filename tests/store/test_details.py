"""Details of a request as JSON: read back as they were, by the reader and by SQL."""

from __future__ import annotations

import math
from dataclasses import asdict

import pytest

from pdtrace.model import Activity, Evidence
from pdtrace.store.details import details_column, read_details
from pdtrace.store.duckdb import DuckDBStore
from pdtrace.store.encoding import loads
from tests.reader.requests import T0, make_request

ODD = {"nan": math.nan, "raw": b"\x00\xff", "$money": 3, "big": 2**70, "none": None, "list": [1, 1.0, True]}


def test_plain_and_odd_values_come_back() -> None:
    plain = make_request("a", [("prefill", 10)], token_times_ns=[T0, T0 + 1])
    plain.activities[0].detail = {"bytes": 5}
    odd = make_request("b", [("prefill", 10)], evidence=[Evidence("state", b"\x01", "", "what", "aa")])
    odd.activities[0].detail = ODD
    first, second = details_column([plain, odd]).to_pylist()
    assert read_details(first)["activities"] == [asdict(plain.activities[0])]
    assert read_details(first)["activities"][0]["detail"] == {"bytes": 5}
    assert read_details(first)["token_times_ns"] == [T0, T0 + 1]
    assert read_details(first)["sections"] == [["prefill", T0, T0 + 10_000_000]]
    back = loads(second)["activities"][0][-1]
    assert math.isnan(back.pop("nan"))
    assert back == {k: v for k, v in ODD.items() if k != "nan"}
    (evidence,) = read_details(second)["evidence"]
    assert evidence == {"name": "state", "value": {"$bytes": "AQ=="}, "unit": "", "text": "what", "span_id": "aa"}
    assert odd.activities[0].detail is ODD  # the request itself is left as it was


def test_what_no_telemetry_can_hold_is_an_error() -> None:
    for detail in ({"a": "\ud800"}, {"a": object()}):
        request = make_request("a", [("prefill", 10)])
        request.activities[0].detail = detail
        with pytest.raises((ValueError, TypeError)):
            details_column([request])


def test_sql_sees_details_through_the_views() -> None:
    store = DuckDBStore(":memory:")
    request = make_request(
        "a",
        to_end_ms=[("ingress", 5), ("prefill", 95)],
        activities=[Activity("handoff", T0, 0, worker="d0", role="decode", gpus=4, detail={"bytes": 12})],
        evidence=[Evidence("queue", 7, "ns", "why", "bb")],
    )
    store.replace_requests(["s"], [request])
    with store._connection.reading() as con:
        assert con.execute("SELECT to_end, stage, end_ns - start_ns FROM sections ORDER BY position").fetchall() == [
            (True, "ingress", 5_000_000),
            (True, "prefill", 95_000_000),
        ]
        asked = "SELECT stage, start_ns, end_ns, worker, role, rank, failed, gpus, detail ->> 'bytes' FROM activities"
        assert con.execute(asked).fetchall() == [("handoff", T0, 0, "d0", "decode", "", False, 4, "12")]
        assert con.execute('SELECT name, CAST("value" AS INT), unit, text, span_id FROM evidence').fetchall() == [
            ("queue", 7, "ns", "why", "bb")
        ]
    store.close()
