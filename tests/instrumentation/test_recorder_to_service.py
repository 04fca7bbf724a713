"""From stamps in three processes' recorders, over HTTP and gRPC, to a request whose sections are right to the nanosecond."""

from __future__ import annotations

from pathlib import Path

from pdtrace.instrumentation import Exporter, GrpcExporter, HttpExporter, Recorder, Resource, SystemClock
from pdtrace.instrumentation import stages as s
from pdtrace.instrumentation.engine import Cached, DecodeSide, Handoff, PrefillSide
from pdtrace.instrumentation.router import Decision, decided
from tests.service.running import eventually, serve

MS = 1_000_000
#: What the drawing below comes to, by hand. 3 ns are put on the end of the prefill: milliseconds would hide a rounding.
SECTIONS = {
    "ingress": 2 * MS,
    "route": 3 * MS,
    "router_queue": 3 * MS,
    "relay": 2 * MS,
    "prefill_queue": 10 * MS,
    "bootstrap": 4 * MS,
    "prefill": 56 * MS + 3,
    "handoff": 15 * MS - 3,
    "decode_queue": 5 * MS,
    "first_token": 15 * MS,
    "egress": 5 * MS,
}


def serve_one(request_id: str, router: Recorder, p0: Recorder, d0: Recorder) -> None:
    """
    ```
    req             0 - 200   first token at 120
      route         2 - 5     @router
      router_queue  5 - 8     @router
      prefill_queue 10 - 20   @p0
      bootstrap     20 - 24   @p0
      prefill       24 - 80   @p0
      handoff       70 - 90   @d0 rank 0
      handoff       72 - 95   @d0 rank 1
      kv_hold       80 - 100  @p0
      decode_queue  95 - 100  @d0
      first_token  100 - 115  @d0
      decode       115 - 200  @d0
    ```
    """
    base_ns = router.clock.now_ns() - 3_000 * MS

    def at(ms: float) -> int:
        return base_ns + round(ms * MS)

    edge = router.begin(request_id, edge=True, at_ns=at(0))
    edge.set("gen_ai.request.model", "tiny")
    edge.set("gen_ai.usage.input_tokens", 1000)
    edge.set("gen_ai.usage.output_tokens", 3)
    decision = Decision(candidates=["p0", "p1"], overlap_tokens=[512, 0], cost=[1, 2], chosen="p0", mode="events")
    decided(edge, decision, at(2), at(5))
    edge.add(s.ROUTER_QUEUE, at(5), at(8))

    prefill = PrefillSide(p0.begin(request_id, traceparent=edge.traceparent, at_ns=at(10)))
    prefill.queue(at(10))
    prefill.wait_for_decode(at(20))
    prefill.prefill(1000, Cached(device=480), at(24))
    prefill.prefilled(at(80) + 3)
    prefill.hold(1 << 20, at(80))
    prefill.release("pull", at(100))
    prefill.finish(at(101))

    decode = DecodeSide(d0.begin(request_id, traceparent=edge.traceparent, at_ns=at(70)))
    handoff = Handoff(decode.record, src="p0", dst="d0", backend="nixl", mode="overlapped", ranks=2)
    handoff.moved(at(70), at(90), {"kv": 1 << 19}, rank=0)
    handoff.moved(at(72), at(95), {"kv": 1 << 19}, rank=1)
    decode.queue(at(95))
    decode.first_step(at(100))
    decode.first_token(at(115))
    decode.finish(at(200))

    for ms in (120, 150, 199):
        edge.tokens(at_ns=at(ms))
    edge.finish("ok", at_ns=at(200))


def send(exporter: type[HttpExporter | GrpcExporter], address: str, request_id: str) -> None:
    clock = SystemClock()  # one anchor: three would differ by some hundred nanoseconds, as processes of one host do

    def recorder(service: str, instance: str, role: str) -> Recorder:
        to: Exporter = exporter(address)
        return Recorder(
            Resource(service, instance, "node-0", role, gpus=2 if role != "router" else None), to, clock=clock
        )

    recorders = (
        recorder("router", "router", "router"),
        recorder("vllm", "p0", "prefill"),
        recorder("vllm", "d0", "decode"),
    )
    recorders[1].worker_state("ready")
    serve_one(request_id, *recorders)
    for each in recorders:
        assert each.shutdown(20)
        stats = each.stats()
        assert (stats.exported, stats.export_failed, stats.rejected_spans, stats.problems) == (1, 0, 0, {})


def test_sections_to_the_nanosecond_over_http_and_grpc(tmp_path: Path) -> None:
    with serve(tmp_path / "a.duckdb") as service:
        send(HttpExporter, service.http, "over-http")
        send(GrpcExporter, service.grpc, "over-grpc")
        rows = eventually(service.requests, lambda rows: len(rows) == 2 and all(r["outcome"] == "ok" for r in rows))
        assert sorted(row["request_id"] for row in rows) == ["over-grpc", "over-http"]
        for row in rows:
            assert {stage: ns for stage, ns in row["sections"].items() if ns} == SECTIONS
            assert row["ttft_ns"] == 120 * MS == sum(SECTIONS.values())
            assert (row["outcome"], row["mode"], row["cached_tokens"]) == ("ok", "overlapped", 480)
            assert (row["prefill_worker"], row["decode_worker"]) == ("p0", "d0")
            assert row["warnings"] == []
        assert service.stop()[0] == 0
