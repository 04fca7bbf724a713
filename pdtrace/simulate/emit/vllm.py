"""Stories as vLLM 0.32 engines tell them, behind vllm-router 0.1.17 or behind a proxy that sends no spans.

Owns vLLM's and the router's names and gaps: one span an engine and request, written when it ends; durations without
stamps; no transfer, no cached tokens, no role; nothing at all for a request that was aborted or whose engine died.

Source: captures vllm-0.32 (real engines, router 0.1.17).

    POST (SERVER)       router   |-----------------------------------------....|    its end is late and means nothing
      POST (CLIENT)     router     |--- prefill ----....|  |--- decode -----....|
        llm_request     P           |-- queue --|- pre -|
        llm_request     D                                   |-- queue --|f|---|      the transfer is inside D's queue
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from pdtrace.simulate.emit.contract import Sink
from pdtrace.simulate.emit.otlp import CLIENT, SERVER, Ids, Process, Processes, Value
from pdtrace.simulate.emit.visits import Visit, visits_of
from pdtrace.simulate.story import ClusterFacts, Story

_ENGINE_SCOPE: Final = "vllm.tracing.otel"
_ROUTER_SCOPE: Final = "vllm-router"
_ANSWERED: Final = ("ok", "ok_fallback")
#: A load that failed was never scheduled: its queue time is a stamp never set minus the machine's uptime.
_UPTIME_NS: Final = 1_315_985_721_547
_SDK: Final[dict[str, Value]] = {"telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry"}


class VllmEmitter:
    """Tells stories as vLLM does.

    Args:
        sink: Where bodies go.
        cluster: Clocks and workers.
        seed: Of ids and of the noise that the captures show (how long spans outlive their calls).
        router: True: behind vllm-router. False: behind a proxy without spans that forwards no context, so that P and D
            are two traces joined by ``gen_ai.request.id``.
    """

    def __init__(self, sink: Sink, cluster: ClusterFacts, seed: int, *, router: bool = True) -> None:
        self._sink = sink
        self._cluster = cluster
        self._ids = Ids(seed)
        self._router = router
        self._processes = Processes(sink.traces)

    def emit(self, story: Story) -> None:
        """Tell one request; spans of what has not ended do not come."""
        visits = visits_of(story, self._cluster)
        trace, top = self._ids.trace(), self._ids.span()
        if self._router and story.end_ns is not None:
            self._server(story, visits, trace, top)
        for visit in visits:
            parent = b""
            if self._router:
                parent = self._ids.span()
                if story.end_ns is not None:
                    self._client(story, visit, trace, parent, top)
            # An aborted request has no span, nor has one whose engine went with it.
            if not (visit.cut or visit.open or visit.lost):
                self._engine(story, visit, visits, trace if self._router else self._ids.trace(), parent)

    def worker_state(self, worker: str, state: str, true_ns: int) -> None:
        """Nothing: vLLM's start-up spans are no worker states."""

    def worker_name(self, worker: str) -> str:
        """``service.instance.id`` of a worker: the worker's own name (a uuid where nobody sets it)."""
        return worker

    def flush(self) -> None:
        """Export what every process has."""
        self._processes.flush()

    def close(self) -> None:
        """``flush``, then close the sink."""
        self.flush()
        self._sink.close()

    # ---------------------------------------------------------------------------------------------------- router

    def _router_process(self, story: Story) -> Process:
        resource: dict[str, Value] = {
            "service.name": "vllm-router",
            "service.instance.id": f"pid-{story.frontend}",
            "service.version": "0.1.17",
            "telemetry.sdk.name": "opentelemetry",
            "telemetry.sdk.language": "rust",
        }
        return self._processes.get(f"router {story.frontend}", resource, _ROUTER_SCOPE)

    def _server(self, story: Story, visits: list[Visit], trace: bytes, span: bytes) -> None:
        assert story.end_ns is not None
        start, ended = self._fe(story, story.arrival_ns), self._fe(story, story.end_ns)
        attributes: dict[str, Value] = {
            "http.request.method": "POST",
            "url.path": "/v1/completions",
            "http.route": "/v1/completions",
            "request_id": story.request_id,
        }
        headers_ns = self._headers_ns(story, visits, start, ended)
        if headers_ns is not None:
            attributes["http.response.status_code"] = str(self._status(story))
            attributes["latency_ms"] = (headers_ns - start) / 1e6
        end = ended + self._late_ns()
        self._router_process(story).span(
            "POST /v1/completions",
            start,
            end,
            trace=trace,
            span=span,
            kind=SERVER,
            flags=1,
            attributes=attributes | {"busy_ns": (end - start) // 900, "idle_ns": end - start - (end - start) // 900},
        )

    def _headers_ns(self, story: Story, visits: list[Visit], start: int, ended: int) -> int | None:
        """When the response's headers left, before D has a token; None: the caller was gone by then."""
        answering = [visit for visit in visits if visit.role != "prefill"]
        if not answering:
            return None if story.outcome == "cancelled" else ended
        first = ended if story.first_token_ns is None else self._fe(story, story.first_token_ns)
        return min(self._fe(story, answering[-1].start_ns) + self._ids.jitter_ns(500, 3_000), first, ended)

    def _status(self, story: Story) -> int:
        """The status: what the front end sent, else the usual one; a failure after the headers is inside a 200."""
        if story.http_status is not None:
            return story.http_status
        return {"invalid": 400, "rejected": 503, "timed_out": 504, "failed_route": 503, "failed_prefill": 500}.get(
            story.outcome, 200
        )

    def _client(self, story: Story, visit: Visit, trace: bytes, span: bytes, top: bytes) -> None:
        """The call to one worker; the answer's status, unless the caller went before it came."""
        start = self._fe(story, visit.called_ns)
        end = self._fe(story, visit.left_ns) + self._late_ns()
        port = 8000 + int.from_bytes(blake2b(visit.worker.encode(), digest_size=2).digest(), "big") % 1000
        attributes: dict[str, Value] = {
            "http.request.method": "POST",
            "url.full": f"http://{visit.worker}:{port}/v1/completions",
            "http.route": "/v1/completions",
            "server.address": visit.worker,
            "server.port": str(port),
            "http.response.status_code": "500" if visit.failed and (visit.role == "prefill" or visit.lost) else "200",
            "busy_ns": (end - start) // 900,
            "idle_ns": end - start - (end - start) // 900,
        }
        if visit.role != "aggregated":
            attributes["vllm.request_phase"] = visit.role
        self._router_process(story).span(
            "POST /v1/completions",
            start,
            end,
            trace=trace,
            span=span,
            parent=top,
            kind=CLIENT,
            flags=1,
            attributes=attributes,
        )

    def _late_ns(self) -> int:
        """How long a router's span outlives what it stands for: mostly a little, at times seconds."""
        return round(self._ids.random.expovariate(1 / 200e6))

    def _fe(self, story: Story, true_ns: int) -> int:
        return self._cluster.stamp(story.frontend_host, true_ns)

    # --------------------------------------------------------------------------------------------------- engines

    def _engine(self, story: Story, visit: Visit, visits: list[Visit], trace: bytes, parent: bytes) -> None:
        start, token, end, scheduled = self._engine_stamps(visit)
        never_scheduled = token is None
        told_ns = token if token is not None else end
        queue_ns = scheduled - start
        if never_scheduled:
            queue_ns = -_UPTIME_NS
        tokens = 1 if visit.role == "prefill" else story.output_tokens
        attributes: dict[str, Value] = {
            "gen_ai.latency.time_to_first_token": (told_ns - start) / 1e9,
            "gen_ai.latency.e2e": (end - start) / 1e9,
            "gen_ai.latency.time_in_queue": queue_ns / 1e9,
            "gen_ai.usage.prompt_tokens": story.input_tokens,
            "gen_ai.usage.completion_tokens": 0 if never_scheduled else tokens,
            "gen_ai.latency.time_in_model_prefill": (told_ns - start - queue_ns) / 1e9,
            "gen_ai.latency.time_in_model_decode": (end - told_ns) / 1e9,
            "gen_ai.latency.time_in_model_inference": (end - start - queue_ns) / 1e9,
            "gen_ai.request.id": self._request_id(story, visits),
            "gen_ai.request.top_p": 1.0,
            "gen_ai.request.max_tokens": 1 if visit.role == "prefill" else story.output_tokens or 1,
            "gen_ai.request.n": 1,
        }
        resource: dict[str, Value] = {
            **_SDK,
            "service.instance.id": visit.worker,
            "service.name": "vllm" if visit.role == "aggregated" else f"vllm-{visit.role}",
            "vllm.instrumenting_module_name": "vllm.llm_engine",
        }
        self._processes.get(f"worker {visit.worker}", resource, _ENGINE_SCOPE).span(
            "llm_request",
            start,
            end + self._ids.jitter_ns(300, 900),
            trace=trace,
            span=self._ids.span(),
            parent=parent,
            kind=SERVER,
            flags=768 if parent else 256,
            attributes=attributes,
        )

    def _engine_stamps(self, visit: Visit) -> tuple[int, int | None, int, int]:
        """Arrival, first token (None: never scheduled), finish, and start of the first scheduled step: its own clock."""
        host, stamp = visit.host, self._cluster.stamp
        start = stamp(host, visit.start_ns)
        if visit.role != "decode":
            passed = [doing for doing in visit.all("prefill", "recompute") if not doing.failed]
            token_ns = max((doing.end_ns for doing in passed), default=None)
            ended_ns = token_ns if token_ns is not None and visit.role == "prefill" else visit.answered_ns
        else:
            passed = visit.all("prefill", "recompute", "first_token")
            emitted = [doing for doing in visit.all("first_token") if not doing.failed]
            token_ns = emitted[0].end_ns if emitted else None
            ended_ns = visit.end_ns
        scheduled_ns = min((doing.start_ns for doing in passed), default=visit.end_ns)
        token = None if token_ns is None else stamp(host, token_ns)
        return start, token, stamp(host, ended_ns), stamp(host, scheduled_ns)

    def _request_id(self, story: Story, visits: list[Visit]) -> str:
        """The id both engines report: the router's own, with both addresses in it, or the caller's."""
        if not self._router:
            return f"cmpl-{story.request_id}-0"
        sides = {visit.role: visit.worker for visit in visits}
        if "aggregated" in sides:
            return f"cmpl-{story.request_id}-0"
        own = blake2b(f"{story.run} {story.request_id}".encode(), digest_size=16).hexdigest()
        addresses = "".join(f"___{side}_addr_{sides.get(side, 'none')}:8000" for side in ("prefill", "decode"))
        return f"cmpl-{addresses}_{own}-0"
