"""What every Store must do. A backend's test module subclasses StoreConformance and gives a ``store`` fixture."""

from __future__ import annotations

import itertools
import math

from pdtrace.model import Batch, Log, Point, Record, Rejection, Span, SpanEvent
from pdtrace.store.contract import KeyRow, Store
from pdtrace.store.encoding import canonical
from tests.reader.requests import MS, T0, S, make_request, trace_id_of

RESOURCE = {"service.name": "frontend", "host.name": "a", "pid": 7}


def make_span(number: int, *, trace: int = 1, **changed: object) -> Span:
    """Span ``number`` of trace ``trace``."""
    fields: dict[str, object] = {
        "trace_id": f"{trace:032x}",
        "span_id": f"{number:016x}",
        "parent_id": "",
        "name": "chat",
        "kind": 2,
        "start_ns": T0 + number * MS,
        "end_ns": T0 + number * MS + 5 * MS,
        "scope": "frontend",
        "resource": RESOURCE,
        "attributes": {"n": number},
    }
    return Span(**(fields | changed))  # type: ignore[arg-type]


def content(span: Span) -> tuple[object, ...]:
    """Everything a span says, comparable: 1, 1.0 and True apart, NaN equal to NaN, keys in any order."""
    return (
        span.key,
        span.parent_id,
        span.name,
        span.kind,
        span.start_ns,
        span.end_ns,
        span.scope,
        canonical(dict(span.resource)),
        canonical(span.attributes),
        [(e.time_ns, e.name, canonical(e.attributes)) for e in span.events],
        [tuple(link) for link in span.links],
        span.status,
        span.status_message,
        span.received_ns,
    )


class StoreConformance:
    """The contract of pdtrace.store.contract, test by test."""

    def test_what_was_added_is_loaded_as_it_came(self, store: Store) -> None:
        span = make_span(
            1,
            parent_id="00000000000000ff",
            attributes={"int": 1, "double": 1.0, "bool": True, "bytes": b"\x00\xff", "nan": math.nan, "null": None,
                        "list": [1, "1", 1.5], "map": {"$bytes": "no bytes", "deep": {"x": -math.inf}}, "big": 2**63 - 1},
            events=[SpanEvent(T0 + 1, "first_token", {"n": 1.0})],
            links=[(f"{9:032x}", f"{9:016x}")],
            status=2,
            status_message="gone\x00away é",
            received_ns=T0 + S,
        )  # fmt: skip
        record = Record("dynamo.request_trace", "r:1", T0, {"ttft_ms": 12.0, "n": 3}, f"{1:032x}", T0 + 5)
        added = store.add(Batch(spans=[span], records=[record]))
        assert added.spans == [span]
        assert added.records == [record]
        spans, records = store.load([span.trace_id, record.source])
        assert [content(s) for s in spans] == [content(span)]
        assert [(r.kind, r.key, r.time_ns, repr(r.body), r.trace_id, r.received_ns) for r in records] == [
            ("dynamo.request_trace", "r:1", T0, repr(record.body), f"{1:032x}", T0 + 5)
        ]

    def test_load_gives_the_asked_sources_and_no_others(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(n, trace=n % 3) for n in range(1, 10)]))
        spans, records = store.load([f"{2:032x}", "record:nothing:here", "no trace id"])
        assert [s.span_id for s in spans] == [f"{n:016x}" for n in (2, 5, 8)]
        assert records == []

    def test_a_batch_sent_twice_is_stored_once(self, store: Store) -> None:
        """Case dup-batch: 5 spans twice, then 1 new: 6 stored, 5 duplicates."""
        five = [make_span(n) for n in range(1, 6)]
        assert len(store.add(Batch(spans=five)).spans) == 5
        again = store.add(Batch(spans=[make_span(n, received_ns=T0) for n in range(1, 6)]))
        assert (again.spans, again.duplicates, again.conflicts) == ([], 5, 0)
        assert len(store.add(Batch(spans=[make_span(6)])).spans) == 1
        ingest = store.query("doctor_ingest", {}).to_pylist()[0]
        assert (ingest["spans"], ingest["duplicates"], ingest["conflicts"]) == (6, 5, 0)

    def test_one_duplicate_does_not_cost_its_batch(self, store: Store) -> None:
        """Case dup-kills-batch: 5 spans of which 1 is known: 4 new ones stored."""
        store.add(Batch(spans=[make_span(3)]))
        added = store.add(Batch(spans=[make_span(n) for n in range(1, 6)]))
        assert [s.span_id for s in added.spans] == [f"{n:016x}" for n in (1, 2, 4, 5)]
        assert added.duplicates == 1

    def test_duplicates_inside_one_batch_are_dropped(self, store: Store) -> None:
        added = store.add(Batch(spans=[make_span(1), make_span(2), make_span(1)]))
        assert (len(added.spans), added.duplicates) == (2, 1)

    def test_the_order_of_keys_and_the_kind_of_resource_object_are_no_difference(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(1, attributes={"a": 1, "b": 2})]))
        other = dict(reversed(RESOURCE.items()))
        again = store.add(Batch(spans=[make_span(1, attributes={"b": 2, "a": 1}, resource=other)]))
        assert (again.duplicates, again.conflicts) == (1, 0)

    def test_an_integer_and_a_double_are_different_content(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(1, attributes={"a": 1})]))
        assert store.add(Batch(spans=[make_span(1, attributes={"a": 1.0})])).conflicts == 1

    def test_of_two_contents_the_later_end_stays_in_any_order_and_split(self, store: Store) -> None:
        copies = [
            {"end_ns": 0},
            {"end_ns": T0 + 9 * MS, "attributes": {"x": "a"}},
            {"end_ns": T0 + 9 * MS, "attributes": {"x": "b"}},
            {"end_ns": T0 + 8 * MS, "start_ns": T0 - 50 * MS},
        ]
        survivors = set()
        for trace, order in enumerate(itertools.permutations(copies), start=100):
            for n, copy in enumerate(order):
                if n == 0 or trace % 2:
                    store.add(Batch(spans=[make_span(1, trace=trace, **copy)]))
            if not trace % 2:
                store.add(Batch(spans=[make_span(1, trace=trace, **copy) for copy in order[1:]]))
            spans, _ = store.load([f"{trace:032x}"])
            assert len(spans) == 1
            assert spans[0].end_ns == T0 + 9 * MS
            survivors.add(spans[0].attributes["x"])
        assert len(survivors) == 1

    def test_a_conflict_is_counted_and_the_winner_is_reported(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(1, end_ns=0)]))
        later = store.add(Batch(spans=[make_span(1)]))
        assert (len(later.spans), later.duplicates, later.conflicts) == (1, 0, 1)
        earlier = store.add(Batch(spans=[make_span(1, end_ns=T0 + 2 * MS)]))
        assert (earlier.spans, earlier.conflicts) == ([], 1)
        assert store.query("doctor_ingest", {}).to_pylist()[0]["conflicts"] == 2

    def test_records_repeat_by_kind_and_key(self, store: Store) -> None:
        first = Record("k", "1", T0, {"a": 1})
        store.add(Batch(records=[first]))
        again = store.add(Batch(records=[Record("k", "1", T0, {"a": 1}, received_ns=5), Record("other", "1", T0, {})]))
        assert (len(again.records), again.duplicates) == (1, 1)
        later = store.add(Batch(records=[Record("k", "1", T0 + 1, {"a": 2})]))
        assert (len(later.records), later.conflicts) == (1, 1)
        _, records = store.load([first.source])
        assert [r.body for r in records] == [{"a": 2}]

    def test_logs_and_points_sent_twice_are_stored_once(self, store: Store) -> None:
        log = Log(T0, "INFO", "", {"text": "started"}, "s", RESOURCE, {"a": 1})
        gauge = Point("kv_usage", "gauge", "1", T0, 0, "s", RESOURCE, {"pool": "p"}, 0.5)
        count = Point("requests", "sum", "", T0, T0 - S, "s", RESOURCE, {}, 12, temporality=2, monotonic=True)
        lengths = Point("len", "histogram", "", T0, 0, "s", RESOURCE, {}, None, {"bounds": [1.0], "buckets": [1, 2]})
        unknown = Point("odd", "gauge", "", T0, 0, "s", RESOURCE, {}, math.nan)
        for _ in range(2):
            added = store.add(Batch(logs=[log, log], points=[gauge, count, lengths, unknown]))
            assert (added.duplicates, added.conflicts) == (0, 0)
        ingest = store.query("doctor_ingest", {}).to_pylist()[0]
        assert (ingest["logs"], ingest["points"], ingest["duplicates"]) == (1, 4, 3 + 4)

    def test_rejections_are_counted_by_what_where_and_reason(self, store: Store) -> None:
        store.add(Batch(rejections=[Rejection("span", "grpc", "no id", 2), Rejection("span", "grpc", "no id")]))
        store.add(Batch(rejections=[Rejection("span", "grpc", "no id"), Rejection("line", "f:3", "not JSON")]))
        rows = store.query("doctor_rejections", {"limit": None}).to_pylist()
        assert rows == [
            {"what": "span", "place": "grpc", "reason": "no id", "count": 4},
            {"what": "line", "place": "f:3", "reason": "not JSON", "count": 1},
        ]

    def test_what_no_column_can_hold_is_rejected_and_the_rest_is_kept(self, store: Store) -> None:
        bad = [
            make_span(2, start_ns=2**63),
            make_span(3, kind=300),
            make_span(4, trace_id="not hex"),
            make_span(5, attributes={"s": "\ud800"}),
            make_span(6, name="\ud800"),
        ]
        bad_record = Record("k", "1", 2**63, {})
        added = store.add(Batch(spans=[make_span(1), *bad, make_span(7)], records=[bad_record]))
        assert [s.span_id for s in added.spans] == [f"{n:016x}" for n in (1, 7)]
        rows = store.query("doctor_rejections", {"limit": None}).to_pylist()
        assert sum(row["count"] for row in rows if row["what"] == "span") == len(bad)
        assert sum(row["count"] for row in rows if row["what"] == "record") == 1

    def test_sources_sharing_a_key_are_found_inside_the_window(self, store: Store) -> None:
        store.add(
            Batch(),
            [
                KeyRow("near", "request_id", "", "r1", T0, T0 + S),
                KeyRow("far", "request_id", "", "r1", T0 + 100 * S, T0 + 101 * S),
                KeyRow("other value", "request_id", "", "r2", T0, T0 + S),
                KeyRow("other kind", "room", "", "r1", T0, T0 + S),
                KeyRow("other scope", "request_id", "server", "r1", T0, T0 + S),
                KeyRow("timeless", "request_id", "", "r1", 0, 0),
            ],
        )
        asked = [KeyRow("me", "request_id", "", "r1", T0 + 5 * S, T0 + 6 * S)]
        assert store.sources_sharing(asked, 4 * S) == {"near", "timeless"}
        assert store.sources_sharing(asked, 3 * S) == {"timeless"}
        assert store.sources_sharing(asked, 200 * S) == {"near", "far", "timeless"}
        assert store.sources_sharing([asked[0]._replace(start_ns=0, end_ns=0)], 0) == {"near", "far", "timeless"}
        assert store.sources_sharing([], S) == set()

    def test_run_labels_come_back_by_source(self, store: Store) -> None:
        store.add(Batch(), [KeyRow("a", "run", "", "night", 0, 0), KeyRow("b", "run", "", "day", 0, 0)])
        store.add(Batch(), [KeyRow("a", "run", "", "night", 0, 0)])
        assert store.runs(["a", "c"]) == {"a": "night"}
        assert store.runs([]) == {}

    def test_sources_come_oldest_first(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(9, trace=1), make_span(1, trace=2), make_span(20, trace=2)]))
        store.add(Batch(records=[Record("k", "1", T0 + 5 * MS, {}), Record("k", "2", 0, {}, received_ns=T0 + 90 * MS)]))
        assert store.sources() == [f"{2:032x}", "record:k:1", f"{1:032x}", "record:k:2"]
        assert store.sources(T0 + 15 * MS) == [f"{2:032x}", "record:k:2"]

    def test_replacing_drops_every_request_of_the_sources(self, store: Store) -> None:
        a, b, c = (make_request(uid, [("prefill", 10)]) for uid in "abc")
        store.replace_requests([*a.sources, *b.sources, *c.sources], [a, b, c])
        merged = make_request("ab", [("prefill", 30)], at_s=1, sources=[*a.sources, *b.sources])
        store.replace_requests(merged.sources, [merged])
        assert uids(store) == {"ab", "c"}
        store.replace_requests(merged.sources, [])
        assert uids(store) == {"c"}

    def test_replacing_again_changes_nothing(self, store: Store) -> None:
        requests = [make_request(f"r{n}", [("prefill", n + 1)], at_s=n) for n in range(5)]
        sources = [s for r in requests for s in r.sources]
        for _ in range(3):
            store.replace_requests(sources, requests)
        assert uids(store) == {f"r{n}" for n in range(5)}
        assert store.query("doctor_store", {}).to_pylist()[0]["requests"] == 5

    def test_requests_of_one_trace_are_replaced_together(self, store: Store) -> None:
        shared = [trace_id_of("t")]
        two = [make_request(uid, [("prefill", 10)], sources=shared) for uid in "xy"]
        store.replace_requests(shared, two)
        store.replace_requests(shared, [make_request("z", [("prefill", 10)], sources=shared)])
        assert uids(store) == {"z"}

    def test_a_request_is_replaced_though_its_window_moved_by_an_hour(self, store: Store) -> None:
        before = make_request("before", [("prefill", 10)], sources=["s"])
        store.replace_requests(["s"], [before])
        store.replace_requests(["s"], [make_request("after", [("prefill", 10)], at_s=3600, sources=["s"])])
        assert uids(store) == {"after"}

    def test_a_request_no_column_can_hold_is_rejected_and_the_rest_is_kept(self, store: Store) -> None:
        good, bad = make_request("good", [("prefill", 10)]), make_request("bad", [("prefill", 10)], input_tokens=2**70)
        store.replace_requests([*good.sources, *bad.sources], [bad, good])
        assert uids(store) == {"good"}
        rows = store.query("doctor_rejections", {"limit": None}).to_pylist()
        assert [(row["what"], row["place"]) for row in rows] == [("request", "bad")]

    def test_clearing_keeps_what_is_raw(self, store: Store) -> None:
        store.add(Batch(spans=[make_span(1)]))
        store.replace_requests([f"{1:032x}"], [make_request("a", [("prefill", 10)])])
        store.clear_derived()
        assert uids(store) == set()
        assert len(store.load([f"{1:032x}"])[0]) == 1
        store.replace_requests([f"{1:032x}"], [make_request("a", [("prefill", 10)])])
        assert uids(store) == {"a"}


def uids(store: Store) -> set[str]:
    """Every request in the store."""
    nothing = dict.fromkeys(
        (
            "since_ns",
            "until_ns",
            "run",
            "model",
            "mode",
            "outcome",
            "prefill_worker",
            "decode_worker",
            "search",
            "limit",
        )
    )
    rows = store.query("requests", {**nothing, "order_by": "t0", "descending": False, "offset": 0}).to_pylist()
    found = [row["uid"] for row in rows]
    assert len(found) == len(set(found)), "a request is there twice"
    return set(found)
