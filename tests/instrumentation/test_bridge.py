"""Records as spans of a TracerProvider: the same spans as the direct way, with the provider's ids, sampler and parents."""

from __future__ import annotations

import dataclasses

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import NoOpTracerProvider, SpanKind, StatusCode

from pdtrace.instrumentation import Record, Recorder, stages
from pdtrace.instrumentation import Resource as OurResource
from pdtrace.instrumentation.bridge import BridgedRecorder
from pdtrace.instrumentation.engine import PrefillSide
from tests.instrumentation.reading import T0, Hand, Memory

CALLER = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"


class Bridge:
    """A provider that keeps its spans, and a recorder before it."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.kept = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, resource=Resource({"service.name": "engine"}))
        self.provider.add_span_processor(SimpleSpanProcessor(self.kept))
        self.recorder = BridgedRecorder(self.provider, clock=Hand(), background=False)

    def spans(self) -> dict[str, ReadableSpan]:
        assert self.recorder.flush()
        return {span.name: span for span in self.kept.get_finished_spans()}


def tell(record: Record) -> None:
    """
    ```
    req       0 - 100
      prefill 10 - 50
      handoff 50 - 60   failed
    ```
    """
    record.next(stages.PREFILL, T0 + 10)
    record.set_stage(stages.PREFILL, "pdtrace.prompt_tokens", 7)
    record.set_stage(stages.PREFILL, "left_out", None)
    record.end(stages.PREFILL, T0 + 50)
    record.add(stages.HANDOFF, T0 + 50, T0 + 60, {"pdtrace.handoff.states": ["kv"]}, attempt=1, failed="peer reset")
    record.set("gen_ai.request.model", "m")
    record.tokens(2, T0 + 70)
    record.finish("failed_handoff", "no state", T0 + 100)


@pytest.mark.parametrize("traceparent", [None, CALLER])
@pytest.mark.parametrize("edge", [True, False])
def test_the_same_spans_as_without_the_bridge(edge: bool, traceparent: str | None) -> None:
    memory = Memory()
    direct = Recorder(OurResource(), memory, clock=Hand(), background=False)
    tell(direct.begin("r1", edge=edge, traceparent=traceparent))
    assert direct.flush()
    wanted = {span.name: span for span in memory.spans()}
    bridge = Bridge()
    tell(bridge.recorder.begin("r1", edge=edge, traceparent=traceparent))
    found = bridge.spans()
    assert set(found) == set(wanted)
    for name, span in found.items():
        same = wanted[name]
        assert (span.start_time, span.end_time) == (same.start_ns, same.end_ns)
        assert span.attributes is not None
        attributes = {key: list(v) if isinstance(v, tuple) else v for key, v in span.attributes.items()}
        assert attributes == same.attributes
        assert (span.status.status_code.value, span.status.description or "") == (same.status, same.status_message)
        assert span.resource.attributes["service.name"] == "engine"
        if traceparent is not None:
            assert f"{span.context.trace_id:032x}" == same.trace_id
    assert len({span.context.trace_id for span in found.values()}) == 1
    if edge:
        root = found["pdtrace.request"]
        assert root.kind is SpanKind.SERVER
        assert {span.parent.span_id for span in found.values() if span.parent and span is not root} == {
            root.context.span_id
        }
        assert (root.parent is None) == (traceparent is None)
    elif traceparent is not None:
        assert {f"{span.parent.span_id:016x}" for span in found.values() if span.parent} == {CALLER[36:52]}
    stats = bridge.recorder.stats()
    assert (stats.begun, stats.submitted, stats.exported, stats.export_failed) == (1, 1, 1, 0)


def test_what_is_passed_on_names_the_span_that_will_be_exported() -> None:
    bridge = Bridge()
    record = bridge.recorder.begin("r1", edge=True)
    passed_on = record.traceparent
    record.finish("ok")
    root = bridge.spans()["pdtrace.request"]
    assert passed_on == f"00-{root.context.trace_id:032x}-{root.context.span_id:016x}-01"


def test_the_current_span_is_the_parent_where_no_header_came() -> None:
    bridge = Bridge()
    with bridge.provider.get_tracer("host").start_as_current_span("GET /") as outer:
        inside = bridge.recorder.begin("r1", edge=True)
    inside.finish("ok")
    root = bridge.spans()["pdtrace.request"]
    assert root.parent is not None
    assert root.parent.span_id == outer.get_span_context().span_id


@pytest.mark.parametrize("traceparent", [None, CALLER, CALLER[:-1] + "0"])
def test_a_request_that_the_provider_does_not_sample_is_not_recorded(traceparent: str | None) -> None:
    bridge = Bridge(ALWAYS_OFF)
    record = bridge.recorder.begin("r1", edge=True, traceparent=traceparent)
    assert not record.recording
    assert record.traceparent.endswith("-00")
    tell(record)
    assert bridge.spans() == {}
    assert bridge.recorder.stats().sampled_out == 1


def test_a_program_without_a_provider_records_nothing() -> None:
    recorder = BridgedRecorder(NoOpTracerProvider(), background=False)
    record = recorder.begin("r1", edge=True)
    assert (record.recording, record.traceparent) == (False, "")


def test_a_processor_that_raises_costs_the_record_and_nothing_else() -> None:
    class Broken(SimpleSpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            if "broken" in (span.attributes or {}):
                raise RuntimeError("a processor of the host's")

    bridge = Bridge()
    bridge.provider.add_span_processor(Broken(bridge.kept))
    bad, good = bridge.recorder.begin("bad", edge=True), bridge.recorder.begin("good", edge=True)
    bad.set("broken", True)
    bad.finish("ok")
    good.finish("ok")
    bridge.spans()
    names = [span.attributes["pdtrace.request.id"] for span in bridge.kept.get_finished_spans() if span.attributes]
    assert names.count("good") >= 1
    assert dataclasses.asdict(bridge.recorder.stats())["export_failed"] == 1
    assert bridge.recorder.stats().exported == 1


def test_status_code_of_success_is_unset() -> None:
    bridge = Bridge()
    record = bridge.recorder.begin("r1", edge=True)
    record.finish("ok")
    assert bridge.spans()["pdtrace.request"].status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(("start_ns", "end_ns"), [(T0 + 9, T0 + 5), (-5, T0), (T0, 1 << 63)])
def test_times_that_no_span_can_have_are_left_out_and_counted(start_ns: int, end_ns: int) -> None:
    bridge = Bridge()
    stage = bridge.recorder.begin("r1")
    stage.add(stages.PREFILL, start_ns, end_ns)
    stage.finish()
    whole = bridge.recorder.begin("r1", edge=True, at_ns=start_ns)
    whole.finish("ok", at_ns=end_ns)
    assert bridge.spans() == {}
    kind = "ends_before_it_begins" if end_ns < start_ns else "time_out_of_range"
    assert bridge.recorder.stats().problems == {kind: 2}


def test_stages_without_a_caller_are_sampled_as_one() -> None:
    class First(Sampler):
        """Takes only what is asked second: a stage with a parent, unless that is followed."""

        def should_sample(self, parent_context: object, trace_id: int, name: str, *more: object, **rest: object):  # type: ignore[no-untyped-def]
            return (ALWAYS_OFF if name == "pdtrace.prefill_queue" else ALWAYS_ON).should_sample(None, trace_id, name)

        def get_description(self) -> str:
            return "first"

    bridge = Bridge(ParentBased(First()))
    record = bridge.recorder.begin("r1")
    record.next(stages.PREFILL_QUEUE)
    record.next(stages.PREFILL)
    record.finish()
    assert bridge.spans() == {}


def test_memory_held_beyond_the_request_hangs_where_its_stages_do() -> None:
    bridge = Bridge()
    side = PrefillSide(bridge.recorder.begin("r1", traceparent=CALLER))
    side.prefill(10, at_ns=T0)
    side.prefilled(T0 + 5)
    side.hold(4096, T0 + 5)
    side.finish(T0 + 5)
    assert set(bridge.spans()) == {"pdtrace.prefill"}
    side.release("pull", T0 + 50)
    held = bridge.spans()["pdtrace.kv_hold"]
    assert (held.start_time, held.end_time) == (T0 + 5, T0 + 50)
    assert held.parent is not None
    assert f"{held.parent.trace_id:032x}-{held.parent.span_id:016x}" == CALLER[3:52]
