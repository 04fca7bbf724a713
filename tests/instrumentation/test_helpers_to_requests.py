"""What a router, a P and a D say through the helpers, encoded, decoded and assembled: the request as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource as SdkResource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pdtrace.assemble import derive
from pdtrace.instrumentation import Record, Recorder, Resource
from pdtrace.instrumentation.bridge import BridgedRecorder
from pdtrace.instrumentation.engine import Cached, DecodeSide, Handoff, PrefillSide
from pdtrace.instrumentation.router import Decision, decided
from pdtrace.model import Activity, Request, Span
from pdtrace.otlp.decode import decode_traces
from tests.instrumentation.reading import T0, Hand, Memory

ROLES = {"router": "router", "p0": "prefill", "p1": "prefill", "d0": "decode"}
RECEIVED_NS = T0 + 10**15


class Cluster:
    """A recorder a process, all on one clock set by hand, and the requests that come of what they export."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.recorders = {name: self.recorder(name, role) for name, role in ROLES.items()}

    def recorder(self, name: str, role: str) -> Recorder:
        resource = Resource("service", name, "node-0", role, gpus=None if role == "router" else 2)
        return Recorder(resource, self.memory, clock=Hand(), background=False)

    def edge(self) -> Record:
        return self.recorders["router"].begin("r1", edge=True, at_ns=T0)

    def prefill(self, edge: Record, worker: str = "p0", attempt: int = 0) -> PrefillSide:
        begin = self.recorders[worker].begin
        return PrefillSide(begin("r1", traceparent=edge.traceparent, attempt=attempt, at_ns=T0))

    def decode(self, edge: Record) -> DecodeSide:
        return DecodeSide(self.recorders["d0"].begin("r1", traceparent=edge.traceparent, at_ns=T0))

    def spans(self) -> list[Span]:
        for recorder in self.recorders.values():
            assert recorder.flush()
            assert recorder.stats().problems == {}
        bodies = [body for signal, body in self.memory.bodies if signal == "traces"]
        return read(bodies)

    def request(self) -> Request:
        (request,) = derive(self.spans())
        return request


class BridgedCluster(Cluster):
    """The same, through an SDK's TracerProvider each."""

    def __init__(self) -> None:
        self.kept: list[InMemorySpanExporter] = []
        super().__init__()

    def recorder(self, name: str, role: str) -> Recorder:
        resource = Resource("service", name, "node-0", role, gpus=None if role == "router" else 2)
        provider = TracerProvider(resource=SdkResource(resource.attributes()))
        self.kept.append(InMemorySpanExporter())
        provider.add_span_processor(SimpleSpanProcessor(self.kept[-1]))
        return BridgedRecorder(provider, clock=Hand(), background=False)

    def spans(self) -> list[Span]:
        assert super().spans() == []
        return read([encode_spans(kept.get_finished_spans()).SerializeToString() for kept in self.kept])


def read(bodies: Sequence[bytes]) -> list[Span]:
    found: list[Span] = []
    for body in bodies:
        batch = decode_traces(body, encoding="protobuf", received_ns=RECEIVED_NS, where="")
        assert batch.rejections == []
        found += batch.spans
    return found


def sections(request: Request) -> list[tuple[str, int, int]]:
    """(stage, start, end), ns after T0."""
    return [(stage, start_ns - T0, end_ns - T0) for stage, start_ns, end_ns in request.sections]


def activity(request: Request, stage: str) -> Activity:
    (found,) = [each for each in request.activities if each.stage == stage]
    return found


both_ways = pytest.mark.parametrize("cluster", [Cluster, BridgedCluster])


@both_ways
def test_a_request_that_went_well(cluster: Callable[[], Cluster]) -> None:
    """
    ```
    req             0 - 300   first token at 203
      route         2 - 5     @router
      prefill_queue 11 - 23   @p0
      bootstrap     23 - 31   @p0
      prefill       31 - 101  @p0
      kv_hold       101 - 5000 @p0   released long after P was done, and after the answer
      handoff       95 - 140  @d0 rank 0
      handoff       97 - 151  @d0 rank 1
      decode_queue  151 - 160 @d0
      first_token   160 - 199 @d0
      decode        199 - 290 @d0
    ```
    """
    here = cluster()
    edge = here.edge()
    chosen = Decision("prefill", "events", ["p0", "p1"], [480, 16], [1.5, 9.0], chosen="p0", block_size=16)
    decided(edge, chosen, T0 + 2, T0 + 5)
    prefill, decode = here.prefill(edge), here.decode(edge)
    prefill.queue(T0 + 11)
    prefill.wait_for_decode(T0 + 23)
    prefill.prefill(1000, Cached(device=448, disk=32), T0 + 31)
    prefill.prefilled(T0 + 101)
    prefill.hold(4096, T0 + 101)
    prefill.finish(T0 + 101)
    handoff = Handoff(decode.record, src="p0", dst="d0", backend="nixl", mode="sequential", ranks=2)
    handoff.moved(T0 + 95, T0 + 140, {"kv": 1000, "mamba_state": 24}, rank=0)
    handoff.moved(T0 + 97, T0 + 151, {"kv": 1000, "mamba_state": 24}, rank=1)
    decode.queue(T0 + 151)
    decode.first_step(T0 + 160)
    decode.first_token(T0 + 199)
    decode.finish(T0 + 290)
    for at_ns in (203, 250, 289):
        edge.tokens(at_ns=T0 + at_ns)
    edge.finish(at_ns=T0 + 300)
    before = here.request()
    prefill.release("pull", T0 + 5000)
    request = here.request()
    assert sections(request) == sections(before) == [
        ("ingress", 0, 2),
        ("route", 2, 5),
        ("relay", 5, 11),
        ("prefill_queue", 11, 23),
        ("bootstrap", 23, 31),
        ("prefill", 31, 101),
        ("handoff", 101, 151),
        ("decode_queue", 151, 160),
        ("first_token", 160, 199),
        ("egress", 199, 203),
    ]  # fmt: skip
    assert (request.ttft_ns, request.ttft_basis, request.outcome) == (203, "router", "ok")
    assert (request.input_tokens, request.cached_tokens, request.mode) == (1000, 480, "sequential")
    assert (request.prefill_worker, request.decode_worker) == ("p0", "d0")
    assert [at_ns - T0 for at_ns in request.token_times_ns] == [203, 250, 289]
    assert request.warnings == []
    handed = activity(request, "handoff")
    assert (handed.start_ns - T0, handed.end_ns - T0, handed.side, handed.failed) == (95, 151, "receive", False)
    believed = activity(request, "route").detail
    assert believed["pdtrace.router.candidates"] == ["p0", "p1"]
    assert believed["pdtrace.router.overlap_tokens"] == [480, 16]
    assert believed["pdtrace.router.cost"] == [1.5, 9.0]
    assert (believed["pdtrace.router.mode"], believed["pdtrace.router.block_size"]) == ("events", 16)
    held = activity(request, "kv_hold")
    assert (held.start_ns - T0, held.end_ns - T0, held.worker) == (101, 5000, "p0")
    assert (held.detail["pdtrace.hold.bytes"], held.detail["pdtrace.hold.released_by"]) == (4096, "pull")


@both_ways
def test_state_that_did_not_arrive_is_computed_again(cluster: Callable[[], Cluster]) -> None:
    """
    ```
    req             0 - 200   first token at 150
      prefill       10 - 50   @p0
      handoff       50 - 70   @d0   fails
      recompute     70 - 130  @d0
      first_token   130 - 148 @d0
      decode        148 - 190 @d0
    ```
    """
    here = cluster()
    edge = here.edge()
    prefill, decode = here.prefill(edge), here.decode(edge)
    prefill.prefill(1000, 0, T0 + 10)
    prefill.finish(T0 + 50)
    Handoff(decode.record, src="p0", dst="d0").moved(
        T0 + 50, T0 + 70, {"kv": 10}, result="transport_error", failed="peer reset"
    )
    decode.recompute(1000, at_ns=T0 + 70)
    decode.first_step(T0 + 130)
    decode.first_token(T0 + 148)
    decode.finish(T0 + 190)
    edge.first_token(T0 + 150)
    edge.finish(at_ns=T0 + 200)
    request = here.request()
    assert request.outcome == "ok_fallback"
    assert sections(request) == [
        ("ingress", 0, 10),
        ("prefill", 10, 50),
        ("handoff", 50, 70),
        ("recompute", 70, 130),
        ("first_token", 130, 148),
        ("egress", 148, 150),
    ]
    assert activity(request, "handoff").failed


@both_ways
@pytest.mark.parametrize("result", ["expired", "transport_error", "abandoned"])
def test_state_that_did_not_arrive_and_nobody_computes_again(cluster: Callable[[], Cluster], result: str) -> None:
    here = cluster()
    edge = here.edge()
    prefill, decode = here.prefill(edge), here.decode(edge)
    prefill.prefill(1000, 0, T0 + 10)
    prefill.finish(T0 + 50)
    Handoff(decode.record, src="p0", dst="d0").moved(T0 + 50, T0 + 70, result=result, failed="gone")  # type: ignore[arg-type]
    decode.finish(T0 + 70)
    edge.finish(at_ns=T0 + 90)
    request = here.request()
    assert (request.outcome, request.ttft_ns, request.sections) == ("failed_handoff", None, [])
    assert request.section_totals_to_end() == {"ingress": 10, "prefill": 40, "handoff": 20, "egress": 20}


@both_ways
def test_a_prefill_tried_again_elsewhere(cluster: Callable[[], Cluster]) -> None:
    """
    ```
    req             0 - 200   first token at 120
      prefill       10 - 40   @p0 attempt 0   fails
      prefill       45 - 90   @p1 attempt 1   prompt work done again
      first_token   95 - 118  @d0
      decode        118 - 190 @d0
    ```
    """
    here = cluster()
    edge = here.edge()
    first, second, decode = here.prefill(edge), here.prefill(edge, "p1", attempt=1), here.decode(edge)
    first.prefill(1000, 960, T0 + 10)
    first.record.fail("prefill", "out of memory")
    first.finish(T0 + 40)
    second.prefill(1000, 32, T0 + 45)
    second.finish(T0 + 90)
    decode.first_step(T0 + 95)
    decode.first_token(T0 + 118)
    decode.finish(T0 + 190)
    edge.first_token(T0 + 120)
    edge.finish(at_ns=T0 + 200)
    request = here.request()
    assert (request.outcome, request.attempts, request.prefill_worker) == ("ok_fallback", 2, "p1")
    assert request.cached_tokens == 32
    assert request.section_totals() == {
        "ingress": 10,
        "prefill": 30,
        "recompute": 45,
        "relay": 10,
        "first_token": 23,
        "egress": 2,
    }


@given(
    st.lists(st.integers(1, 10**12), min_size=9, max_size=9),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=8),
)
def test_sections_are_the_lengths_that_were_stamped(lengths: list[int], ranks: list[tuple[int, int]]) -> None:
    """Stages one after the other, of any length; a handoff of ranks that begin and end within it at different times."""
    route, router_queue, queue, bootstrap, prefill_ns, handoff_ns, decode_queue, first, last = lengths
    at = [T0]
    for length in lengths:
        at.append(at[-1] + length)
    here = Cluster()
    edge = here.edge()
    decided(edge, Decision(chosen="p0"), at[0], at[1])
    edge.add("router_queue", at[1], at[2])
    prefill, decode = here.prefill(edge), here.decode(edge)
    prefill.queue(at[2])
    prefill.wait_for_decode(at[3])
    prefill.prefill(at_ns=at[4])
    prefill.finish(at[5])
    moving = Handoff(decode.record, src="p0", dst="d0", ranks=len(ranks) + 1)
    moving.moved(at[5], at[6], {"kv": 1}, rank=0)
    for number, (early, late) in enumerate(ranks, start=1):
        start_ns = at[5] + handoff_ns * min(early, late) // 100
        moving.moved(start_ns, at[5] + handoff_ns * max(early, late) // 100, {"kv": 1}, rank=number)
    decode.queue(at[6])
    decode.first_step(at[7])
    decode.first_token(at[8])
    decode.finish(at[9])
    edge.first_token(at[8])
    edge.finish(at_ns=at[9])
    request = here.request()
    assert request.section_totals() == {
        "route": route,
        "router_queue": router_queue,
        "prefill_queue": queue,
        "bootstrap": bootstrap,
        "prefill": prefill_ns,
        "handoff": handoff_ns,
        "decode_queue": decode_queue,
        "first_token": first,
    }
    assert request.end_ns is not None
    assert (request.ttft_ns, request.end_ns - T0) == (sum(lengths) - last, sum(lengths))
