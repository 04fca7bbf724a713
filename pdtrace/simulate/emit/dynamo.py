"""Stories as NVIDIA Dynamo 1.5.1 tells them: front end, router and workers' spans, and the request trace.

Owns Dynamo's names and gaps. What Dynamo does not say is not here: no queue, no prefill and no transfer of a worker, no
host, no cached tokens but the router's prediction.

Source: captures of a real front end, router and mocker workers, version 1.5.1.

    http-request            front end  |------------------------------------------|
      select_worker         front end    |-|                 |-|
      route_request         front end       |--- Prefill ---|   |---- Decode ----------|
        handle_payload      worker            |-- opaque --|      |---- opaque ------|
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from pdtrace.simulate.emit.contract import Sink
from pdtrace.simulate.emit.otlp import CLIENT, ERROR, SERVER, Ids, Process, Processes, Value
from pdtrace.simulate.emit.visits import Visit, routing_of, visits_of
from pdtrace.simulate.story import ClusterFacts, Doing, Story

SCHEMA: Final = "dynamo.request.trace.v1"
OVER_LONG: Final = "request rejected: request exceeds worker admission limits"
_SAMPLED_LOCAL, _SAMPLED_REMOTE = 257, 769
_REQUEST_SPAN: Final = {"target": "request_span"}
_PHASES: Final = {"prefill": "Prefill", "decode": "Decode", "aggregated": "Aggregated"}
_COMPONENTS: Final = {"prefill": "prefill", "decode": "backend", "aggregated": "backend"}
_ANSWERED: Final = ("ok", "ok_fallback")
#: error_type and its sentence, by what the request came to.
_ERRORS: Final = {
    "invalid": ("validation", "invalid request parameters"),
    "rejected": ("overload", "service overloaded or rate limited"),
    "cancelled": ("cancelled", "cancelled before completion"),
    "timed_out": ("response_timeout", "no response in time"),
}
_FAILED: Final = ("internal", "internal server error during processing")


class DynamoEmitter:
    """Tells stories as Dynamo does.

    Args:
        sink: Where bodies and request-trace lines go.
        cluster: Clocks and workers.
        seed: Of ids and of the noise that the captures show (microseconds of logging).
        request_trace: Whether the front end writes its request trace too.
    """

    def __init__(self, sink: Sink, cluster: ClusterFacts, seed: int, *, request_trace: bool = True) -> None:
        self._sink = sink
        self._cluster = cluster
        self._ids = Ids(seed)
        self._request_trace = request_trace
        self._processes = Processes(sink.traces)

    def emit(self, story: Story) -> None:
        """Tell one request. A request that is still open has no span at the front end: spans come when they end."""
        visits = visits_of(story, self._cluster)
        _Telling(self, story, visits).tell()
        if self._request_trace and story.end_ns is not None and story.outcome in _ANSWERED:
            self._sink.records(self._trace_line(story, visits))

    def worker_state(self, worker: str, state: str, true_ns: int) -> None:
        """Nothing: Dynamo's workers do not tell."""

    def worker_name(self, worker: str) -> str:
        """``instance_id`` of a worker: a decimal u64, the same at every start."""
        return str(int.from_bytes(blake2b(worker.encode(), digest_size=8).digest(), "big"))

    def flush(self) -> None:
        """Export what every process has."""
        self._processes.flush()

    def close(self) -> None:
        """``flush``, then close the sink."""
        self.flush()
        self._sink.close()

    def _trace_line(self, story: Story, visits: list[Visit]) -> dict[str, Any]:
        """One line of request_trace.jsonl. Its TTFT is P's in P/D, and its cached tokens are the router's prediction."""
        assert story.end_ns is not None
        stamp, host = self._cluster.stamp, story.frontend_host
        began_ns, end_ns = stamp(host, story.arrival_ns), stamp(host, story.end_ns)
        prefill = next((v for v in visits if v.role in ("prefill", "aggregated")), None)
        decode = next((v for v in reversed(visits) if v.role in ("decode", "aggregated")), None)
        first_ns = stamp(host, story.first_token_ns) if story.first_token_ns is not None else None
        prefilled_ns = first_ns
        estimate_ms = None
        if prefill is not None and decode is not None and prefill is not decode and first_ns is not None:
            prefilled_ns = min(stamp(host, prefill.answered_ns), first_ns)
            estimate_ms = (first_ns - prefilled_ns) / 1e6 if story.mode == "sequential" else 0.0
        block_size = prefill.choice.block_size if prefill is not None and prefill.choice is not None else 64
        predicted = _overlap_tokens(prefill)
        request: dict[str, Any] = {
            "request_id": _request_uuid(story),
            "input_tokens": story.input_tokens,
            "output_tokens": story.output_tokens,
            "cached_tokens": predicted // block_size * block_size,
            "request_received_ms": began_ns // 1_000_000,
            "prefill_wait_time_ms": None if prefill is None else (stamp(host, prefill.called_ns) - began_ns) / 1e6,
            "ttft_ms": None if prefilled_ns is None else (prefilled_ns - began_ns) / 1e6,
            "total_time_ms": (end_ns - began_ns) / 1e6,
            "kv_hit_rate": predicted / story.input_tokens if story.input_tokens else 0.0,
            "kv_transfer_estimated_latency_ms": estimate_ms,
            "queue_depth": 0,
            "worker": {
                "prefill_worker_id": None if prefill is None else int(self.worker_name(prefill.worker)),
                "decode_worker_id": None if decode is None else int(self.worker_name(decode.worker)),
            },
            "replay": {"trace_block_size": block_size, "input_length": story.input_tokens},
        }
        event = {
            "schema": SCHEMA,
            "event_type": "request_end",
            "event_time_unix_ms": end_ns // 1_000_000,
            "request": {name: value for name, value in request.items() if value is not None},
        }
        return {"timestamp": (end_ns - began_ns) // 1_000_000, "event": event}


class _Telling:
    """One request on its way into spans."""

    def __init__(self, emitter: DynamoEmitter, story: Story, visits: list[Visit]) -> None:
        self._ids = emitter._ids
        self._stamp = emitter._cluster.stamp
        self._name = emitter.worker_name
        self._processes = emitter._processes
        self._story = story
        self._visits = visits
        self._trace = self._ids.trace()
        self._top = self._ids.span()
        self._request_id = _request_uuid(story)
        self._frontend = self._processes.get(
            f"frontend {story.frontend}", {"service.name": "dynamo-frontend"}, "dynamo-frontend"
        )

    def _fe(self, true_ns: int) -> int:
        return self._stamp(self._story.frontend_host, true_ns)

    def tell(self) -> None:
        if self._story.end_ns is not None:
            self._http_request(self._story.end_ns)
        self._choices()
        for visit in self._visits:
            self._visit(visit)

    # ------------------------------------------------------------------------------------------------- front end

    def _http_request(self, end_ns: int) -> None:
        story = self._story
        start, end = self._fe(story.arrival_ns), self._fe(end_ns)
        first = None if story.first_token_ns is None else self._fe(story.first_token_ns)
        # The front end counts its TTFT from the moment it has read the request.
        read = start + min(self._ids.jitter_ns(90, 300), ((first or end) - start) // 2)
        attributes: dict[str, Value] = {
            **_REQUEST_SPAN,
            "method": "POST",
            "uri": "/v1/chat/completions",
            "version": "HTTP/1.1",
            "trace_id": self._trace.hex(),
            "trace_flags": "01",
            "x_request_id": story.request_id,
            "request_id": self._request_id,
            "model": story.model,
        }
        if story.outcome in _ANSWERED:
            attributes["input_tokens"] = str(story.input_tokens)
            attributes["output_tokens"] = str(story.output_tokens)
        elif story.outcome not in ("cancelled", "invalid"):
            attributes["input_tokens"] = attributes["output_tokens"] = "0"
        if first is not None:
            attributes["ttft_ms"] = f"{(first - read) / 1e6:.2f}"
            if story.outcome in _ANSWERED and story.output_tokens > 1:
                attributes["avg_itl_ms"] = f"{(end - first) / 1e6 / (story.output_tokens - 1):.2f}"
        for role in ("prefill", "decode"):
            visit = next((v for v in self._visits if v.role in (role, "aggregated")), None)
            if visit is not None:  # it keeps the first one, also after a migration
                attributes[f"{role}_worker_id"] = self._name(visit.worker)
        outcome = "success" if story.outcome in _ANSWERED else "error"
        if story.outcome == "cancelled":
            outcome = "cancelled"
        attributes["request.outcome"] = outcome
        self._frontend.span(
            "http-request",
            start,
            end,
            trace=self._trace,
            span=self._top,
            flags=_SAMPLED_LOCAL,
            attributes=attributes | _busy(end - start),
            events=self._events(read, end, first),
            status=ERROR if outcome == "error" else 0,
        )

    def _events(self, read: int, end: int, first: int | None) -> list[tuple[int, str, Mapping[str, Value]]]:
        """Log lines of the front end: they alone tell the HTTP status."""
        story = self._story
        common: dict[str, Value] = {
            "target": "dynamo_llm::http::service::metrics",
            "request_id": self._request_id,
            "model": story.model,
            "endpoint": "chat_completions",
            "request_type": "stream",
        }
        events: list[tuple[int, str, Mapping[str, Value]]] = [(read, "request received", {"level": "INFO", **common})]
        status = self._status(first)
        in_stream = status == 200
        dispatched = max((self._fe(v.called_ns) for v in self._visits if v.role != "prefill"), default=read)
        sent = (200, min(max(read, dispatched), end)) if in_stream else (status, end)
        error_type, detail = _ERRORS.get(story.outcome, _FAILED)
        if story.outcome == "rejected":
            if not any(v.role == "prefill" and v.first("prefill") and not v.failed for v in self._visits):
                text = "request rejected by prefill worker (at capacity)"
                events.append(
                    (end, text, {"level": "WARN", "error": "ResourceExhausted: all eligible workers are overloaded"})
                )
            events.append(
                (
                    end,
                    "Service temporarily overloaded: ResourceExhausted: all eligible workers are overloaded",
                    {"level": "ERROR"},
                )
            )
        elif story.outcome == "invalid" and in_stream:
            error_type, detail = _FAILED
            events.append((end, f"Streaming error: {OVER_LONG}", {"level": "ERROR"}))
        elif story.outcome not in (*_ANSWERED, "cancelled", "invalid", "timed_out"):
            events.append((end, f"Streaming error: {story.error or detail}", {"level": "ERROR"}))
        if story.outcome == "invalid" and status == 404:
            error_type, detail = "not_found", "model or resource not found"
        completed: dict[str, Value] = {"level": "INFO", **common, "status": "success"}
        if story.outcome not in _ANSWERED:
            status_text = "cancelled" if story.outcome == "cancelled" else "error"
            completed |= {"level": "ERROR", "status": status_text, "error_type": error_type, "error_detail": detail}
        events.append((end, "request completed", completed))
        if sent[0] is not None:
            events.append((sent[1], "http response sent", {"level": "INFO", "status": str(sent[0])}))
        events.sort(key=lambda event: event[0])
        return events

    def _status(self, first: int | None) -> int | None:
        """The status that was sent; None if none was: Dynamo's overload is 529, whatever others would send."""
        story = self._story
        if story.outcome == "rejected":
            return 529
        if story.outcome in ("cancelled", "timed_out") and first is None:
            return None
        if story.outcome == "invalid":
            return story.http_status if story.http_status in (200, 404) else 400
        return 200

    # --------------------------------------------------------------------------------------------------- routing

    def _choices(self) -> None:
        """select_worker with its .schedule, in whose idle time the request waits for the router's admission."""
        pending: list[Doing] = []
        for doing in routing_of(self._story):
            if (pending and doing.start_ns != pending[-1].end_ns) or any(each.stage == doing.stage for each in pending):
                self._choice(pending)
                pending = []
            pending.append(doing)
        if pending:
            self._choice(pending)

    def _choice(self, doings: list[Doing]) -> None:
        start, end = self._fe(doings[0].start_ns), self._fe(doings[-1].end_ns)
        span = self._ids.span()
        target: dict[str, Value] = {"target": "dynamo_llm::kv_router::routing_host::kv"}
        self._frontend.span(
            "kv_router.select_worker",
            start,
            end,
            trace=self._trace,
            span=span,
            parent=self._top,
            flags=_SAMPLED_LOCAL,
            attributes=target | _busy(end - start),
        )
        waited = next((d for d in doings if d.stage == "router_queue"), None)
        if waited is None:
            at = start + (end - start) // 2
            steps = [("compute_block_hashes", start, start), ("find_matches", start, at), ("schedule", at, end)]
        else:
            steps = [("schedule", self._fe(waited.start_ns), self._fe(waited.end_ns))]
        for step, begun, ended in steps:
            idle = ended - begun if waited is not None else 0
            self._frontend.span(
                f"kv_router.{step}",
                begun,
                ended,
                trace=self._trace,
                span=self._ids.span(),
                parent=span,
                flags=_SAMPLED_LOCAL,
                attributes={"target": "dynamo_llm::kv_router", "busy_ns": ended - begun - idle, "idle_ns": idle},
            )

    # --------------------------------------------------------------------------------------------------- workers

    def _visit(self, visit: Visit) -> None:
        route = self._ids.span()
        if self._story.end_ns is not None or not visit.open:
            self._route(visit, route)
        if not visit.lost and not visit.open:
            self._payload(visit, route)

    def _route(self, visit: Visit, span: bytes) -> None:
        start, end = self._fe(visit.called_ns), self._fe(visit.left_ns)
        attributes: dict[str, Value] = {
            **_REQUEST_SPAN,
            "request_id": self._request_id,
            "dp_rank": "0",
            "overlap_blocks": "0",
            "phase": _PHASES[visit.role],
            "worker_id": self._name(visit.worker),
            "request.attempt": "0",
            "migration.is_retry": False,
        }
        if visit.choice is not None and visit.role != "decode":
            attributes["overlap_blocks"] = str(_overlap_tokens(visit) // visit.choice.block_size)
        if visit.role != "prefill":
            attributes["migration.tokens_completed"] = "0"
            if visit.attempt:  # a migration runs the prefill again, but only the Decode route counts it
                attributes["request.attempt"] = str(visit.attempt)
                attributes["migration.is_retry"] = True
                attributes["migration.reason"] = "worker_disconnected"
        outcome, more = "success", {}
        if visit.failed or visit.lost:
            outcome = "connection_failed" if visit.unreached else "worker_disconnected" if visit.lost else "error"
            more = {"error.type": outcome}
        elif visit.cut:
            outcome, more = "cancelled", {"cancellation.signal": "stream_drop"}
        attributes |= {"request.outcome": outcome, **more}
        said = "completed" if outcome == "success" else "cancelled" if outcome == "cancelled" else "failed"
        self._frontend.span(
            "kv_router.route_request",
            start,
            end,
            trace=self._trace,
            span=span,
            parent=self._top,
            kind=CLIENT,
            flags=_SAMPLED_LOCAL,
            attributes=attributes | _busy(end - start),
            events=[(end, f"route request {said}", {"level": "INFO", **_REQUEST_SPAN, "request.outcome": outcome})],
            status=ERROR if visit.failed or visit.lost else 0,
        )

    def _payload(self, visit: Visit, route: bytes) -> None:
        start = self._stamp(visit.host, visit.start_ns)
        end = self._stamp(visit.host, visit.answered_ns)
        target: dict[str, Value] = {"target": "dynamo_runtime::pipeline::network::ingress::push_handler"}
        events: list[tuple[int, str, Mapping[str, Value]]] = [
            (start, "request received", {"level": "INFO", **target, "request_id": self._request_id})
        ]
        if visit.cut:
            signal: dict[str, Value] = {"cancellation.signal": "kill", "cancellation.source": "upstream"}
            events.append((end, "request cancellation received", {"level": "INFO", **_REQUEST_SPAN, **signal}))
        if not visit.failed:
            events.append((end, "request completed", {"level": "INFO", **target, "request_id": self._request_id}))
        self._worker(visit).span(
            "handle_payload",
            start,
            end,
            trace=self._trace,
            span=self._ids.span(),
            parent=route,
            kind=SERVER,
            flags=_SAMPLED_REMOTE,
            attributes={
                **_REQUEST_SPAN,
                "trace_id": self._trace.hex(),
                "parent_id": route.hex(),
                "trace_flags": "01",
                "x_request_id": self._story.request_id,
                "request_id": self._request_id,
                "component": _COMPONENTS[visit.role],
                "endpoint": "generate",
                "namespace": "dynamo",
                "instance_id": self._name(visit.worker),
            }
            | _busy(end - start),
            events=events,
            status=ERROR if visit.failed else 0,
        )

    def _worker(self, visit: Visit) -> Process:
        service = f"dynamo-worker-{visit.role}"
        return self._processes.get(f"worker {visit.worker}", {"service.name": service}, service)


def _request_uuid(story: Story) -> str:
    """Dynamo's own request id: a uuid; the caller's id is x_request_id."""
    return str(uuid.UUID(bytes=blake2b(f"{story.run} {story.request_id}".encode(), digest_size=16).digest(), version=4))


def _overlap_tokens(visit: Visit | None) -> int:
    """Tokens that the router believed to be cached on the worker it chose."""
    choice = visit.choice if visit is not None else None
    if choice is None or choice.chosen not in choice.candidates:
        return 0
    return choice.overlap_tokens[choice.candidates.index(choice.chosen)]


def _busy(length_ns: int) -> dict[str, Value]:
    """How tokio split a span's time: nearly all of it the task sat idle, whatever the worker did."""
    busy_ns = length_ns // 50
    return {"busy_ns": busy_ns, "idle_ns": length_ns - busy_ns}
