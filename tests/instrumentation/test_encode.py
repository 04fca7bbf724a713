"""Records to bytes: any order of calls against a slow model of it, read by protobuf and by pdtrace's own decoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdtrace.instrumentation import Recorder, Resource
from pdtrace.instrumentation.stages import STAGES
from pdtrace.otlp.decode import decode
from tests.instrumentation.reading import T0, Hand, Memory, Worker, metric_points, spans_of, value_of

STAGE = st.sampled_from([*STAGES[:5], *STAGES[:5], "thinking", ""])
AT = st.integers(0, 40)
TEXT = st.text(st.characters(), max_size=140)
SCALAR = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 66), 1 << 66), st.floats(allow_nan=False), TEXT, st.binary(max_size=30)
)
VALUE = st.one_of(SCALAR, st.lists(SCALAR, max_size=4), st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3))
quick = settings(deadline=None)  # the machine may be busy, and a decoder loads its tables at the first call
CALL = st.one_of(
    st.tuples(st.just("next"), STAGE, AT),
    st.tuples(st.just("begin"), STAGE, AT),
    st.tuples(st.just("end"), STAGE, AT),
    st.tuples(st.just("add"), STAGE, AT, AT, st.dictionaries(TEXT, VALUE, max_size=2), st.integers(0, 3), TEXT),
    st.tuples(st.just("set_stage"), STAGE, TEXT, VALUE),
    st.tuples(st.just("fail"), STAGE, TEXT),
)


@dataclass
class Told:
    """One stage as the model understands it."""

    stage: str
    start: int
    end: int | None
    attempt: int
    attributes: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None


def model(calls: list[tuple[Any, ...]], end: int) -> list[Told]:
    """What the calls mean: the stages that come out, in the order they began."""
    told: list[Told] = []
    running: list[Told] = []

    def latest(stage: str) -> Told | None:
        return next((one for one in reversed(told) if one.stage == stage), None)

    for name, stage, *rest in calls:
        known = stage in STAGES
        if name == "next" and running:
            running.pop().end = rest[0]
        if name in ("next", "begin") and known:
            told.append(Told(stage, rest[0], None, 0))
            running.append(told[-1])
        if name == "end":
            ended = next((one for one in reversed(running) if one.stage == stage), None)
            if ended is not None:
                ended.end = rest[0]
                running = [one for one in running if one is not ended]
        if name == "add" and known:
            start, stop, attributes, attempt, failed = rest
            told.append(Told(stage, start, stop, attempt, dict(attributes), failed or None))
        one = latest(stage)
        if name == "set_stage" and one is not None:
            one.attributes[rest[0]] = rest[1]
        if name == "fail" and one is not None:
            one.failed = rest[0] or "failed"
    for one in told:
        one.end = end if one.end is None else one.end
    return [one for one in told if one.end is not None and one.start <= one.end]


def clean(text: str) -> str:
    """Text without lone surrogates."""
    return text.encode("utf-8", "replace").decode()


def plain(value: Any) -> Any:
    """A value as OTLP can carry it."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or not isinstance(value, int | list | None):
        return value
    if isinstance(value, list):
        return (
            [plain(each) for each in value] if None not in value else [plain(str(v) if v is None else v) for v in value]
        )
    return value if value is None or -(1 << 63) <= value < 1 << 63 else str(value)


def say(recorder: Recorder, calls: list[tuple[Any, ...]], end: int, *, edge: bool) -> None:
    """Make the calls on a new record and finish it."""
    record = recorder.begin("r", edge=edge, at_ns=T0)
    for name, stage, *rest in calls:
        if name in ("next", "begin", "end"):
            getattr(record, name)(stage, T0 + rest[0])
        elif name == "add":
            start, stop, attributes, attempt, failed = rest
            record.add(stage, T0 + start, T0 + stop, attributes, attempt=attempt, failed=failed)
        else:
            getattr(record, name)(stage, *rest)
    record.finish(at_ns=T0 + end)


@quick
@given(st.lists(CALL, max_size=25), st.integers(0, 50), st.booleans())
def test_any_order_of_calls_is_read_as_the_model_does(calls: list[tuple[Any, ...]], end: int, edge: bool) -> None:
    worker = Worker()
    say(worker.recorder, calls, end, edge=edge)
    spans = worker.spans()
    if edge:
        root = spans.pop(0)
        assert (root.name, root.start_ns, root.end_ns) == ("pdtrace.request", T0, T0 + end)
        assert {span.parent_id for span in spans} <= {root.span_id}
    assert [(span.name, span.start_ns - T0, span.end_ns - T0, span.status, span.status_message) for span in spans] == [
        (f"pdtrace.{one.stage}", one.start, one.end, 2 if one.failed else 0, clean(one.failed or ""))
        for one in model(calls, end)
    ]
    for span, one in zip(spans, model(calls, end), strict=True):
        wanted: dict[str, Any] = {"pdtrace.request.id": "r", "pdtrace.attempt": one.attempt}
        for name, value in one.attributes.items():
            if value is not None:
                wanted[clean(name)] = plain(value)
        assert span.attributes == wanted
    stats = worker.recorder.stats()
    assert (stats.submitted, stats.exported, stats.export_failed) == (1, 1, 0)


@quick
@given(st.lists(st.lists(CALL, max_size=6), min_size=1, max_size=5), st.booleans())
def test_pdtraces_own_decoders_read_the_same(requests: list[list[tuple[Any, ...]]], vectorised: bool) -> None:
    worker = Worker("prefill")
    for calls in requests:
        say(worker.recorder, calls, 50, edge=True)
    assert worker.recorder.flush()
    ((signal, body),) = worker.memory.bodies
    assert signal == "traces"
    batch = decode("traces", body, encoding="protobuf", received_ns=0, where="test", vectorised=vectorised)
    assert batch.rejections == []
    for span, theirs in zip(spans_of(body), batch.spans, strict=True):
        assert (theirs.name, theirs.start_ns, theirs.end_ns) == (span.name, span.start_ns, span.end_ns)
        assert (theirs.trace_id, theirs.span_id, theirs.parent_id or "") == (
            span.trace_id,
            span.span_id,
            span.parent_id,
        )


def test_the_resource_of_every_body() -> None:
    memory = Memory()
    resource = Resource(
        "vllm", "p0", "node-0", "prefill", "big", 8, "H200", 4, 2, "run-1", {"cloud.region": "eu", "empty": None}
    )
    recorder = Recorder(resource, memory, clock=Hand(), background=False)
    recorder.begin("r", edge=True).finish()
    recorder.worker_state("ready")
    assert recorder.flush()
    wanted = {
        "service.name": "vllm",
        "service.instance.id": "p0",
        "host.name": "node-0",
        "pdtrace.worker.role": "prefill",
        "pdtrace.worker.pool": "big",
        "pdtrace.worker.gpus": 8,
        "pdtrace.worker.gpu_type": "H200",
        "pdtrace.worker.tp": 4,
        "pdtrace.worker.pp": 2,
        "pdtrace.run": "run-1",
        "cloud.region": "eu",
    }
    assert sorted(signal for signal, _ in memory.bodies) == ["logs", "traces"]
    for _, body in memory.bodies:  # field numbers of the resource and of its scopes are those of all three signals
        (part,) = ExportTraceServiceRequest.FromString(body).resource_spans
        assert {pair.key: value_of(pair.value) for pair in part.resource.attributes} == wanted
        assert part.scope_spans[0].scope.name == "pdtrace"


def test_a_process_names_itself_where_nobody_does() -> None:
    memory = Memory()
    recorder = Recorder(Resource(), memory, clock=Hand(), background=False)
    recorder.begin("r", edge=True).finish()
    assert recorder.flush()
    (part,) = ExportTraceServiceRequest.FromString(memory.bodies[0][1]).resource_spans
    found = {pair.key: value_of(pair.value) for pair in part.resource.attributes}
    assert set(found) == {"service.name", "service.instance.id", "host.name"}
    assert found["service.instance.id"].startswith(f"{found['host.name']}:")


def test_a_workers_state_is_a_log_that_pdtrace_reads() -> None:
    worker = Worker("decode")
    worker.at(77)
    worker.recorder.worker_state("draining")
    assert worker.recorder.flush()
    (log,) = worker.memory.logs()
    assert (log.event_name, log.time_unix_nano) == ("pdtrace.worker.state", T0 + 77)
    ((_, body),) = worker.memory.bodies
    batch = decode("logs", body, encoding="protobuf", received_ns=0, where="test")
    assert batch.rejections == []
    (read,) = batch.logs
    assert (read.time_ns, read.attributes["pdtrace.worker.state"]) == (T0 + 77, "draining")


def test_counters_are_a_metric_that_pdtrace_reads() -> None:
    from pdtrace.instrumentation.encode import encode_counters

    body = encode_counters({"submitted": 7, "dropped_full": 0}, T0, T0 + 10, {"service.name": "x"})
    assert metric_points(body) == {"submitted": 7, "dropped_full": 0}
    batch = decode("metrics", body, encoding="protobuf", received_ns=0, where="test")
    assert batch.rejections == []
    assert {(point.name, point.value, point.time_ns) for point in batch.points} == {
        ("pdtrace.instrumentation.records", 7, T0 + 10),
        ("pdtrace.instrumentation.records", 0, T0 + 10),
    }


@quick
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_forms_of_spans_are_kept_apart(attempts: list[int]) -> None:
    """Templates are kept by stage, attempt and lengths: none may serve for another."""
    worker = Worker()
    record = worker.recorder.begin("", at_ns=T0)
    for number, attempt in enumerate(attempts):
        record.add(STAGES[number % 3], T0, T0 + number, {"a": "x" * number}, attempt=attempt)
    record.finish(at_ns=T0 + 30)
    assert [(span.name, span.attributes, span.end_ns) for span in worker.spans()] == [
        (f"pdtrace.{STAGES[number % 3]}", {"pdtrace.attempt": attempt, "a": "x" * number}, T0 + number)
        for number, attempt in enumerate(attempts)
    ]


def test_an_attempt_that_only_equals_a_whole_number_spoils_no_other() -> None:
    worker = Worker()
    for attempt in (1.0, True, 1):
        record = worker.recorder.begin("r", attempt=attempt)  # type: ignore[arg-type]
        record.add("recompute", T0, T0 + 1)
        record.finish(at_ns=T0 + 1)
    found = [span.attributes["pdtrace.attempt"] for span in worker.spans()]
    assert [type(attempt) for attempt in found] == [int, int, int]
    assert found == [1, 1, 1]


def test_more_forms_than_are_kept() -> None:
    worker = Worker(capacity=100)
    record = worker.recorder.begin("r", at_ns=T0)
    for length in range(9000):
        record.add("prefill", T0, T0 + 1, {"a": "x" * (length % 9000)})
    record.finish(at_ns=T0 + 1)
    assert [len(span.attributes["a"]) for span in worker.spans()] == list(range(9000))
