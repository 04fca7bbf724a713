"""Stories as SGLang 0.5.23 engines tell them, behind the model gateway (smg, sglang-router 0.3.2).

Owns the visits' roots, threads and slices, and the gateway's span. Transfers are told in sglang_sender. The gaps are
SGLang's: the gateway never says why or how it chose, a wait for KV is one slice over all of P's work, and the end of the
gateway's span is not the end of the answer.

Source: capture pd_e2e_router_plus_sglang and srt/observability/{trace,req_time_stats}.py of sglang 0.5.23.

    http_request                    gateway   |------------------------------...|
      prefill Req                   P            |----------------|
        PrefillTokenizer              P          |t|
        Prefill Scheduler [TP r]      P            |prepare|bootstrap|waiting|forward|transfer|
      decode Req                    D            |---------------------------------|
        DecodeTokenizer               D          |t|
        Decode Scheduler [TP r]       D            |prepare|bootstrap|transferred....|waiting|forward|
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from pdtrace.simulate.emit.contract import Sink
from pdtrace.simulate.emit.otlp import ERROR, Ids, Processes, Value
from pdtrace.simulate.emit.sglang_sender import SCOPE, SDK, LastSend, host_id, last_send, tell_sends, thread_id
from pdtrace.simulate.emit.visits import Visit, visits_of
from pdtrace.simulate.story import ClusterFacts, Story

_ANSWERED: Final = ("ok", "ok_fallback")
_SIDES: Final = {"prefill": "Prefill", "decode": "Decode", "aggregated": ""}
#: How long a rank other than the first needs more to begin and less to end than the first: its slices lie inside.
_RANK_SKEW_NS: Final = 2_000

Slice = tuple[str, int, int]


class SglangEmitter:
    """Tells stories as SGLang does.

    Args:
        sink: Where bodies go.
        cluster: Clocks and workers; a worker's tensor-parallel ranks each tell their own slices.
        seed: Of ids, rooms and the noise that the captures show.
        mooncake: Whether the senders' own traces come too (``--trace-modules request,mooncake``).
        token_slices: Whether D tells every token (trace level 3, the default) or only the first.
    """

    def __init__(
        self, sink: Sink, cluster: ClusterFacts, seed: int, *, mooncake: bool = True, token_slices: bool = True
    ) -> None:
        self._sink = sink
        self.cluster = cluster
        self.ids = Ids(seed)
        self._mooncake = mooncake
        self.token_slices = token_slices
        self.processes = Processes(sink.traces)

    def emit(self, story: Story) -> None:
        """Tell one request; spans of what has not ended do not come."""
        visits = visits_of(story, self.cluster)
        trace, top = self.ids.trace(), self.ids.span()
        if story.end_ns is not None:
            self._gateway(story, visits, trace, top)
        rooms: dict[int, int] = {}
        for visit in visits:
            room = rooms.setdefault(visit.attempt, self.ids.random.getrandbits(63) | 1)
            sent = last_send(visit, visits)
            if not (visit.open or visit.lost):
                _Visiting(self, story, visit, room, sent, trace, top).tell()
                if self._mooncake and visit.role == "prefill":
                    tell_sends(self.processes, self.ids, self.cluster, visit, visits, room)

    def worker_state(self, worker: str, state: str, true_ns: int) -> None:
        """Nothing: SGLang tells no worker states."""

    def worker_name(self, worker: str) -> str:
        """``service.instance.id`` of a worker's tokenizer: the worker's own name (a uuid where nobody sets it)."""
        return worker

    def flush(self) -> None:
        """Export what every process has."""
        self.processes.flush()

    def close(self) -> None:
        """``flush``, then close the sink."""
        self.flush()
        self._sink.close()

    # --------------------------------------------------------------------------------------------------- gateway

    def _gateway(self, story: Story, visits: list[Visit], trace: bytes, span: bytes) -> None:
        assert story.end_ns is not None
        start, ended = self._fe(story, story.arrival_ns), self._fe(story, story.end_ns)
        end = ended + round(self.ids.random.expovariate(1 / 50e6))
        attributes: dict[str, Value] = {
            "method": "POST",
            "uri": "/generate",
            "version": "HTTP/1.1",
            "module": "smg",
            "request_id": story.request_id,
        }
        headers_ns = self._headers_ns(story, visits, ended)
        if headers_ns is not None:
            attributes["status_code"] = str(self._status(story))
            attributes["latency"] = str((headers_ns - start) // 1_000)
        events: list[tuple[int, str, Mapping[str, Value]]] = []
        target = {"level": "INFO", "target": "smg::observability::events"}
        for attempt in sorted({visit.attempt for visit in visits}):
            sides = {visit.role: visit for visit in visits if visit.attempt == attempt}
            urls = {
                "url" if role == "aggregated" else f"{role}_url": f"http://{side.worker}:30000"
                for role, side in sides.items()
            }
            sent_ns = min(side.called_ns for side in sides.values())
            events.append((self._fe(story, sent_ns), "Sending concurrent requests", {**target, **urls}))
            failed = any(side.failed or side.lost for side in sides.values())
            back_ns = min(self._fe(story, max(s.left_ns for s in sides.values())), ended) if failed else headers_ns
            if back_ns is not None:
                events.append((back_ns, "Received concurrent requests", target))
        busy_ns = (end - start) // 400
        self.processes.get(
            f"gateway {story.frontend}",
            {"service.name": "smg", "telemetry.sdk.language": "rust", "telemetry.sdk.name": "opentelemetry"},
            "smg",
        ).span(
            "http_request",
            start,
            end,
            trace=trace,
            span=span,
            flags=1,
            attributes=attributes | {"busy_ns": busy_ns, "idle_ns": end - start - busy_ns},
            events=events,
        )

    def _headers_ns(self, story: Story, visits: list[Visit], ended: int) -> int | None:
        """When the response's headers left: with D's first token; None: the caller was gone by then."""
        if story.first_token_ns is not None:
            return self._fe(story, story.first_token_ns)
        return None if story.outcome == "cancelled" else ended

    def _status(self, story: Story) -> int:
        """Whatever fails in a leg is a 500; what the gateway itself refuses keeps its status."""
        if story.outcome in _ANSWERED or story.first_token_ns is not None:
            return 200
        if story.http_status is not None and story.outcome in ("invalid", "rejected", "timed_out", "failed_route"):
            return story.http_status
        return {"invalid": 400, "rejected": 503, "timed_out": 504, "failed_route": 503}.get(story.outcome, 500)

    def _fe(self, story: Story, true_ns: int) -> int:
        return self.cluster.stamp(story.frontend_host, true_ns)


class _Visiting:
    """One visit on its way into spans: root, tokenizer thread, one scheduler thread a rank."""

    def __init__(
        self,
        emitter: SglangEmitter,
        story: Story,
        visit: Visit,
        room: int,
        sent: LastSend | None,
        trace: bytes,
        top: bytes,
    ) -> None:
        self._emitter = emitter
        self._ids = emitter.ids
        self._story = story
        self._visit = visit
        self._room = room
        self._sent = sent
        self._trace = trace
        self._top = top
        self._root = self._ids.span()
        self._side = _SIDES[visit.role]
        self._host_id = host_id(visit.host)
        self._failed = visit.failed or visit.move_failed

    def tell(self) -> None:
        visit = self._visit
        took = self._intake_ns()
        self._tell_root(took)
        tokenizer = f"{self._side}Tokenizer"
        start = self._at(visit.start_ns)
        middle, done = start + took * 3 // 4, start + took
        dispatched = b""
        if took:
            dispatched = self._thread(
                tokenizer, None, [("tokenize", start, middle), ("api_server_dispatch", middle, done)], b""
            )
        slices = self._slices(visit.start_ns + took)
        for rank in range(max(1, self._emitter.cluster.workers[visit.worker].tp)):
            if slices:
                self._thread(f"{self._side} Scheduler".strip(), rank, slices, dispatched)

    def _at(self, true_ns: int) -> int:
        return self._emitter.cluster.stamp(self._visit.host, true_ns)

    def _intake_ns(self) -> int:
        """How long the tokenizer has it: the beginning of the first wait, at most."""
        first = self._visit.doings[0] if self._visit.doings else None
        if (
            first is None
            or first.start_ns > self._visit.start_ns
            or first.stage not in ("prefill_queue", "decode_queue")
        ):
            return 0
        return min(self._ids.jitter_ns(300, 1_500), (first.end_ns - first.start_ns) // 2)

    # ------------------------------------------------------------------------------------------------------ root

    def _tell_root(self, intake_ns: int) -> None:
        visit = self._visit
        rid = blake2b(f"{self._room} {visit.worker}".encode(), digest_size=16).hexdigest()
        start, end = self._at(visit.start_ns), self._at(self._end_ns())
        attributes: dict[str, Value] = {
            "rid": rid,
            "module": "sglang::request",
            "bootstrap_room": hex(self._room),
        }
        if visit.role == "aggregated":
            del attributes["bootstrap_room"]
        token_ns = self._token_ns()
        if not visit.cut:
            attributes |= self._usage(rid)
        if token_ns is not None:
            token = self._at(token_ns)
            attributes["gen_ai.latency.time_to_first_token"] = (token - start) / 1e9
            attributes["gen_ai.latency.time_in_model_prefill"] = (token - start - intake_ns) / 1e9
            attributes["gen_ai.latency.time_in_model_decode"] = (end - token) / 1e9
        attributes["gen_ai.latency.e2e"] = (end - start) / 1e9
        attributes["gen_ai.latency.time_in_model_inference"] = (end - start - intake_ns) / 1e9
        role = "" if visit.role == "aggregated" else visit.role
        self._emitter.processes.get(f"tokenizer {visit.worker}", self._resource(visit.worker), SCOPE).span(
            f"{role} Req {rid[:8]}",
            start,
            end,
            trace=self._trace,
            span=self._root,
            parent=self._top,
            flags=768,
            attributes=attributes,
        )

    def _usage(self, rid: str) -> dict[str, Value]:
        visit, story = self._visit, self._story
        failed = self._failed
        cached = next((d.detail["cached_tokens"] for d in visit.doings if "cached_tokens" in d.detail), 0)
        return {
            "gen_ai.usage.completion_tokens": 0 if failed else 1 if visit.role == "prefill" else story.output_tokens,
            "gen_ai.usage.prompt_tokens": story.input_tokens,
            "gen_ai.usage.cached_tokens": 0 if visit.role == "decode" or failed else cached,
            "gen_ai.request.id": rid,
            "gen_ai.request.max_tokens": max(1, story.output_tokens),
            "gen_ai.request.temperature": 0.7,
            "gen_ai.response.model": story.model,
            "gen_ai.response.finish_reasons": json.dumps(["abort" if failed else "length"]),
        }

    def _end_ns(self) -> int:
        """P is done with a request when its state has left."""
        if self._visit.role == "prefill" and self._sent is not None and self._story.mode != "sequential":
            return max(self._visit.answered_ns, self._sent.end_ns)
        return self._visit.answered_ns

    def _token_ns(self) -> int | None:
        """P's "first token" is the hand-over; D's and an aggregated worker's is the token."""
        visit = self._visit
        if self._failed or (visit.role == "decode" and not self._made_token()):
            return None
        if visit.role == "prefill":
            return None if visit.cut else self._end_ns()
        stage = "first_token" if visit.first("first_token") or visit.role == "decode" else "prefill"
        emitted = visit.all(stage)
        return emitted[-1].end_ns if emitted else None

    def _made_token(self) -> bool:
        """Whether D's first step was finished."""
        first = self._visit.first("first_token")
        return first is not None and not first.failed and not (self._visit.cut and first.end_ns == self._visit.end_ns)

    def _resource(self, instance: str) -> dict[str, Value]:
        return {**SDK, "service.instance.id": instance}

    # ---------------------------------------------------------------------------------------------------- slices

    def _slices(self, from_ns: int) -> list[Slice]:
        """Slices of a scheduler thread in true time, by start; children of a slice have its name before theirs."""
        return self._decode_slices(from_ns) if self._visit.role == "decode" else self._prefill_slices(from_ns)

    def _prefill_slices(self, from_ns: int) -> list[Slice]:
        visit = self._visit
        slices: list[Slice] = []
        waits = visit.all("prefill_queue")
        holds_off = visit.first("bootstrap")
        for wait in waits:
            before = wait is waits[0] and holds_off is not None and wait.end_ns <= holds_off.start_ns
            name = "prefill_prepare" if before else "prefill_waiting"
            if visit.role == "aggregated":
                name = "request_process"
            slices.append((name, max(wait.start_ns, from_ns), wait.end_ns))
        slices += [("prefill_bootstrap", doing.start_ns, doing.end_ns) for doing in visit.all("bootstrap")]
        passes = [doing for doing in visit.all("prefill", "recompute") if not doing.failed]
        if passes:
            slices.append(("prefill_forward", passes[0].start_ns, passes[-1].end_ns))
            if len(passes) > 1:
                slices += [("prefill_forward/chunked_prefill", doing.start_ns, doing.end_ns) for doing in passes]
            sent = self._sent
            if sent is not None and not sent.failed and self._end_ns() > passes[-1].end_ns:
                # The tail: from the last chunk in the sender's queue to the poll that finds it sent.
                began_ns = max(passes[-1].end_ns, sent.start_ns)
                slices.append(("prefill_transfer_kv_cache", began_ns, sent.end_ns))
        if visit.role == "aggregated":
            slices += self._tokens(visit.first("decode"))
        return _in_order(slices)

    def _decode_slices(self, from_ns: int) -> list[Slice]:
        visit, sent = self._visit, self._sent
        slices: list[Slice] = []
        landed_ns = sent.end_ns if sent is not None else visit.start_ns
        reserved_ns = None
        for wait in visit.all("decode_queue"):
            start_ns = max(wait.start_ns, from_ns)
            if start_ns >= landed_ns:
                slices.append(("decode_waiting", start_ns, wait.end_ns))
                continue
            # Before its KV is here: pages are reserved until the transfer can begin, then it waits for the transfer.
            until_ns = min(wait.end_ns, max(start_ns, sent.start_ns if sent is not None else wait.end_ns))
            slices.append(("decode_bootstrap", start_ns, until_ns))
            reserved_ns = until_ns
            if wait.end_ns > landed_ns:
                slices.append(("decode_waiting", landed_ns, wait.end_ns))
        first = visit.first("first_token")
        if sent is not None and not sent.failed:
            begun_ns = reserved_ns if reserved_ns is not None else visit.start_ns
            if landed_ns > begun_ns:
                slices.append(("decode_transferred", begun_ns, landed_ns))
        if first is not None and self._made_token():
            decode = visit.first("decode")
            slices.append(("decode_forward", first.start_ns, decode.end_ns if decode else first.end_ns))
            slices.append(("decode_forward/fake_output", first.start_ns, first.end_ns))
            slices += self._tokens(decode)
        return _in_order(slices)

    def _tokens(self, decode: object) -> list[Slice]:
        """One slice a token after the first, as far as D (not the front end) made it inside its decode."""
        story, visit = self._story, self._visit
        if decode is None or not self._emitter.token_slices or story.first_token_ns is None:
            return []
        first = visit.first("first_token")
        made_ns = first.end_ns if first is not None else story.first_token_ns
        way_ns = story.first_token_ns - made_ns
        ends = [at - way_ns for at in story.token_times_ns[1:] if at - way_ns <= visit.end_ns]
        starts = [made_ns, *ends[:-1]]
        return [("decode_forward/decode_loop", at, to) for at, to in zip(starts, ends, strict=True) if to >= at]

    # --------------------------------------------------------------------------------------------------- threads

    def _thread(self, label: str, rank: int | None, slices: list[Slice], linked: bytes) -> bytes:
        """A thread span and its slices, each linked to the one before; returns the last slice's id."""
        visit, emitter = self._visit, self._emitter
        process = f"tokenizer {visit.worker}" if rank is None else f"scheduler {visit.worker} {rank}"
        instance = visit.worker if rank is None else f"{visit.worker}-tp{rank}"
        spans = emitter.processes.get(process, self._resource(instance), SCOPE)
        pid = thread_id(process)
        named = label if rank is None else f"{label} [TP {rank}] "
        thread = self._ids.span()
        attributes: dict[str, Value] = {} if rank is None else {"tp_rank": rank}
        attributes |= {"host_id": self._host_id, "pid": pid, "thread_label": label}
        failed = self._failed if rank is not None else ""
        if failed:
            attributes["reason"] = self._reason(failed)
        own = [self._of_rank(each, rank) for each in slices]
        spans.span(
            f"{named}(host:{self._host_id[:8]} | pid:{pid})",
            min(start for _, start, _ in own),
            max(self._at(visit.answered_ns) if failed else 0, *[end for _, _, end in own]),
            trace=self._trace,
            span=thread,
            parent=self._root,
            flags=256 if rank is None else 768,
            attributes=attributes,
            status=ERROR if failed else 0,
        )
        above: dict[str, bytes] = {}
        made = 0
        for name, start, end in own:
            outer, _, inner = name.rpartition("/")
            span = self._ids.span()
            above[name] = span
            links = [(self._trace, linked)] if linked and not outer else []
            spans.span(
                inner,
                start,
                end,
                trace=self._trace,
                span=span,
                parent=above.get(outer, thread),
                flags=256,
                links=links,
                attributes={"decode_ct": made} if inner == "decode_loop" else None,
                events=self._scheduled(inner, start, end),
            )
            made += inner == "decode_loop"
            if not outer:
                linked = span
        return linked

    def _of_rank(self, told: Slice, rank: int | None) -> Slice:
        """The slice as this rank saw it, in stamps: ranks work in step, the others start later and end sooner."""
        name, start_ns, end_ns = told
        if rank is None:
            return told  # the tokenizer's are stamps already
        start, end = self._at(start_ns), self._at(end_ns)
        skew = min(_RANK_SKEW_NS * rank, (end - start) // 4)
        return name, start + skew, end - skew

    def _scheduled(self, name: str, start: int, end: int) -> list[tuple[int, str, Mapping[str, Value]]]:
        modes = {
            "prefill_forward": "prefill",
            "chunked_prefill": "prefill",
            "fake_output": "prebuilt",
            "decode_loop": "decode",
        }
        if name not in modes:
            return []
        batch: dict[str, Value] = {"bid": f"{self._ids.random.getrandbits(32):08x}", "batch_size": "1"}
        return [(start + min(50_000, (end - start) // 2), "schedule", {**batch, "forward_mode": modes[name]})]

    def _reason(self, failed: str) -> str:
        """SGLang names the step that failed and the room, in one sentence."""
        own = next((doing.stage for doing in self._visit.doings if doing.failed), "handoff")
        step = {"handoff": "transfer", "bootstrap": "bootstrap"}.get(own, "forward")
        return f"{self._side} {step} failed for request bootstrap_room={self._room}: {failed}"


def _in_order(slices: list[Slice]) -> list[Slice]:
    """By start, an outer slice before what lies in it."""
    return sorted(slices, key=lambda each: (each[1], "/" in each[0], each[2]))
