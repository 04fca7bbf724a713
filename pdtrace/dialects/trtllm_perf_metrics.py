"""TensorRT-LLM's /perf_metrics: one entry for each request, from the proxy (P and D together) or from one worker.

Owns the entry's field names and which stamps bound which stage. Does not poll, and does not line clocks up: every
server's stamps stay on a steady clock of its own, tied by what must have happened before what.

Source (read, not run): serve/_perf_metrics_schema.py@4856bb7, serve/perf_metrics.py@07fe631 and
serve/scripts/time_breakdown/README.md@21bcac5. Stamps are seconds on steady_clock, no Unix time.

    proxy  arrival ...... dispatch                                                        first token
    ctx              server arrival . arrival . scheduled . first token . server first token
    gen                                       server arrival . arrival . kv start, end . scheduled . server first token
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pdtrace.dialects.contract import as_int, seconds_to_ns
from pdtrace.model import Activity, Before, Edge, Evidence, Failure, Key, Reading, Record, Role, TtftClaim, Value

KIND = "trtllm.perf_metrics"
_DIALECT = "trtllm"
_STAMPS = (
    "server_arrival_time",
    "arrival_time",
    "first_scheduled_time",
    "first_token_time",
    "server_first_token_time",
    "last_token_time",
    "kv_cache_transfer_start",
    "kv_cache_transfer_end",
)


def perf_metrics_record(entry: Mapping[str, Value], server: str = "") -> Record:
    """A Record of one /perf_metrics entry.

    Args:
        entry: One element of the list that GET /perf_metrics returns, from the proxy or from a worker.
        server: host:port it was read from; the clock's name, and the scope of a worker's own request id.

    Raises:
        ValueError: The entry has neither the proxy's stamps nor a worker's ``perf_metrics``.
    """
    if "perf_metrics" not in entry and "disagg_server_arrival_time" not in entry:
        raise ValueError("a /perf_metrics entry has `perf_metrics` (worker) or `disagg_server_arrival_time` (proxy)")
    body = dict(entry) if not server else {**entry, "server": server}
    # The proxy's entry and the two workers' own say different things of one request: none is the other's duplicate.
    digest = hashlib.sha256(json.dumps(body, sort_keys=True, default=str).encode()).hexdigest()[:16]
    disagg_id = as_int(entry.get("disagg_request_id"))
    return Record(KIND, f"{disagg_id}:{digest}" if disagg_id is not None else digest, 0, body)


def keys_of_record(record: Record) -> tuple[Key, ...]:
    """The global disagg_request_id, and the ctx worker's id inside that server; () ties it to nothing else."""
    body = record.body
    keys = []
    disagg_id = as_int(body.get("disagg_request_id"))
    if disagg_id is not None:
        keys.append(Key("context_id", str(disagg_id), _DIALECT))
    if "perf_metrics" in body:
        worker, ctx_server = body, body.get("ctx_server")
        if not ctx_server and _worker_role(body) == "prefill":
            ctx_server = body.get("server")
    else:
        worker, ctx_server = body.get("ctx_perf_metrics") or {}, body.get("ctx_server")
    ctx_id = as_int(worker.get("ctx_request_id", worker.get("request_id"))) if isinstance(worker, Mapping) else None
    if ctx_id is not None and ctx_server:
        keys.append(Key("context_id", str(ctx_id), f"{_DIALECT}:{ctx_server}"))
    return tuple(keys)


def read_perf_metrics(record: Record, out: Reading) -> None:
    """Append one entry's stages, edge and order of events to ``out``."""
    body = record.body
    _read_status(body, out)
    if "perf_metrics" in body:
        _read_worker_entry(body, out)
    else:
        _read_proxy_entry(body, record, out)
    _read_cache(body, out)


@dataclass(frozen=True, slots=True)
class _Worker:
    """One worker's stamps (ns on its own steady clock; a missing one is absent)."""

    role: Role
    name: str
    clock: str
    at: dict[str, int]
    transfer_bytes: int | None

    def first(self, *names: str) -> int | None:
        return next((self.at[name] for name in names if name in self.at), None)


def _worker(metrics: Value, role: Role, server: Value, fallback: str) -> _Worker | None:
    """The worker's stamps, or None if the entry has no part for it. -1 and 0 mean missing."""
    if not isinstance(metrics, Mapping) or not isinstance(metrics.get("perf_metrics"), Mapping):
        return None
    timing = metrics["perf_metrics"].get("timing_metrics")
    timing = timing if isinstance(timing, Mapping) else {}
    stamps = {name: seconds_to_ns(timing.get(name)) for name in _STAMPS}
    at = {name: ns for name, ns in stamps.items() if ns is not None and ns > 0}
    name = str(server or "")
    return _Worker(role, name, f"steady:{name or fallback}", at, as_int(timing.get("kv_cache_size")))


def _worker_role(body: Mapping[str, Value]) -> Role:
    """Role of a worker's own entry: ctx counts ctx_request_id itself, gen got it from elsewhere and pulled KV."""
    if as_int(body.get("ctx_request_id")) is None:
        return "aggregated"
    timing = (body.get("perf_metrics") or {}).get("timing_metrics") or {}
    pulled = any((seconds_to_ns(timing.get(f"kv_cache_transfer_{edge}")) or 0) > 0 for edge in ("start", "end"))
    own = as_int(body.get("request_id")) == as_int(body.get("ctx_request_id"))
    one_token = timing.get("first_token_time") == timing.get("last_token_time")
    return "prefill" if own and one_token and not pulled else "decode"


def _read_proxy_entry(body: Mapping[str, Value], record: Record, out: Reading) -> None:
    proxy_clock = f"steady:{body.get('server') or 'proxy'}"
    arrival_ns = _stamp(body, "disagg_server_arrival_time")
    dispatch_ns = _stamp(body, "disagg_ctx_dispatch_time")
    first_token_ns = _stamp(body, "disagg_server_first_token_time")
    ctx = _worker(body.get("ctx_perf_metrics"), "prefill", body.get("ctx_server"), "ctx")
    gen = _worker(body.get("gen_perf_metrics"), "decode", body.get("gen_server"), "gen")
    prompt_on_ctx = ctx is not None or bool(body.get("ctx_server"))
    together = prompt_on_ctx and _generation_first(body)
    if arrival_ns is not None:
        end_ns = first_token_ns or dispatch_ns or arrival_ns
        out.edges.append(
            Edge(
                "router",
                arrival_ns,
                end_ns,  # the last stamp the proxy has: it stamps no end
                proxy_clock,
                "",
                record.trace_id,
                _DIALECT,
                first_token_ns=first_token_ns,
                end_is_trusted=False,
            )
        )
        # Without the dispatch stamp (older proxies) the choice ends where ctx has the request.
        chosen_ns = dispatch_ns or (ctx.first("server_arrival_time", "arrival_time") if ctx else None)
        _interval(out, "route", arrival_ns, chosen_ns, _Worker("", "", proxy_clock, {}, None))
    if first_token_ns is not None:
        out.fact("answered", True)
    if ctx:
        _read_context(ctx, out)
    elif prompt_on_ctx:
        out.warn(
            "ctx_metrics_missing", f"{body.get('ctx_server')} reported nothing of this request (its ring is short)"
        )
    if gen:
        _read_generation(gen, prompt_on_ctx, out)
    mode = "overlapped" if together else "sequential" if prompt_on_ctx else "prefill_on_decode"
    out.fact("mode", mode if gen else None)
    _read_order(proxy_clock, dispatch_ns or arrival_ns, first_token_ns, ctx, gen, together, out)


def _read_worker_entry(body: Mapping[str, Value], out: Reading) -> None:
    role = _worker_role(body)
    worker = _worker(body, role, body.get("server"), role)
    if worker is None:
        return
    if role == "prefill":
        _read_context(worker, out)
    elif role == "decode":
        _read_generation(worker, True, out)
    else:
        _read_aggregated(worker, out)


def _read_context(ctx: _Worker, out: Reading) -> None:
    """P: queue, then the forward pass. What its server does before and after is the relay's (README's sample)."""
    out.fact("prefill_worker", ctx.name)
    arrival_ns, scheduled_ns = ctx.at.get("arrival_time"), ctx.at.get("first_scheduled_time")
    first_token_ns = ctx.first("first_token_time", "server_first_token_time")
    if scheduled_ns is None:
        _interval(out, "prefill_opaque", arrival_ns, first_token_ns, ctx)
    else:
        _interval(out, "prefill_queue", arrival_ns, scheduled_ns, ctx)
        _interval(out, "prefill", scheduled_ns, first_token_ns, ctx)
    _claim(out, "prefill_engine", ctx, "P's own first token, which the user never sees")


def _read_generation(gen: _Worker, prompt_on_ctx: bool, out: Reading) -> None:
    """D: blocks and slot, the transfer inside that wait, then the first step. No ctx: the prompt ran here."""
    out.fact("decode_worker", gen.name)
    arrival_ns, scheduled_ns = gen.at.get("arrival_time"), gen.at.get("first_scheduled_time")
    first_token_ns = gen.first("server_first_token_time", "first_token_time")
    _interval(
        out,
        "handoff",
        gen.at.get("kv_cache_transfer_start"),
        gen.at.get("kv_cache_transfer_end"),
        gen,
        {"backend": "trtllm", **({"bytes": gen.transfer_bytes} if gen.transfer_bytes else {})},
    )
    if scheduled_ns is None:
        _interval(out, "decode_opaque", arrival_ns, first_token_ns, gen)
    else:
        _interval(out, "decode_queue", arrival_ns, scheduled_ns, gen)
        if prompt_on_ctx:
            _interval(out, "first_token", scheduled_ns, first_token_ns, gen)
        else:
            prompt_done_ns = gen.first("first_token_time", "server_first_token_time")
            _interval(out, "prefill", scheduled_ns, prompt_done_ns, gen)
            _interval(out, "first_token", prompt_done_ns, first_token_ns, gen)
    if prompt_on_ctx and "kv_cache_transfer_end" not in gen.at:
        out.warn(
            "may_hold_transfer", "gen reports no transfer stamps: its queue or its first step may hold the transfer"
        )
    _first_token(out, gen, first_token_ns)
    _claim(out, "decode_engine", gen, "from gen's arrival, not the user's")


def _read_aggregated(worker: _Worker, out: Reading) -> None:
    out.fact("prefill_worker", worker.name)
    out.fact("decode_worker", worker.name)
    out.fact("mode", "aggregated")
    arrival_ns, scheduled_ns = worker.at.get("arrival_time"), worker.at.get("first_scheduled_time")
    computed_ns = worker.first("first_token_time", "server_first_token_time")
    first_token_ns = worker.first("server_first_token_time", "first_token_time")
    if scheduled_ns is None:
        _interval(out, "prefill_opaque", arrival_ns, first_token_ns, worker)
    else:
        _interval(out, "prefill_queue", arrival_ns, scheduled_ns, worker)
        _interval(out, "prefill", scheduled_ns, computed_ns, worker)
        _interval(out, "first_token", computed_ns, first_token_ns, worker)
    _first_token(out, worker, first_token_ns)


def _first_token(out: Reading, worker: _Worker, first_token_ns: int | None) -> None:
    if first_token_ns is not None:
        out.fact("first_token_ns", first_token_ns)
        out.fact("first_token_clock", worker.clock)
        out.fact("answered", True)


def _interval(
    out: Reading,
    stage: str,
    start_ns: int | None,
    end_ns: int | None,
    worker: _Worker,
    detail: dict[str, Value] | None = None,
) -> None:
    """An activity between two stamps; unknown if one is missing, a warning if they are the wrong way round."""
    if start_ns is None or end_ns is None:
        return
    if end_ns < start_ns:
        late_ms = (start_ns - end_ns) / 1e6
        out.warn("inverted_interval", f"{stage} on {worker.clock} ends {late_ms:.3f} ms before it starts: not known")
        return
    out.activities.append(
        Activity(
            stage,
            start_ns,
            end_ns,
            worker=worker.name,
            role=worker.role,
            clock=worker.clock,
            dialect=_DIALECT,
            side="receive" if stage == "handoff" else "",
            detail=detail or {},
        )
    )


def _claim(out: Reading, name: str, worker: _Worker, measures: str) -> None:
    start_ns = worker.first("server_arrival_time", "arrival_time")
    end_ns = worker.first("server_first_token_time", "first_token_time")
    if start_ns is not None and end_ns is not None and end_ns >= start_ns:
        out.ttft_claims.append(TtftClaim(name, end_ns - start_ns, measures))


def _read_order(
    proxy_clock: str,
    sent_ns: int | None,
    first_token_ns: int | None,
    ctx: _Worker | None,
    gen: _Worker | None,
    together: bool,
    out: Reading,
) -> None:
    """What happened before what, across the servers' clocks. With generation first, gen does not wait for ctx."""

    def before(clock_a: str, a_ns: int | None, clock_b: str, b_ns: int | None, why: str) -> None:
        if a_ns is not None and b_ns is not None and clock_a != clock_b:
            out.before.append(Before(clock_a, a_ns, clock_b, b_ns, why))

    if ctx:
        reached_ns = ctx.first("server_arrival_time", "arrival_time")
        before(proxy_clock, sent_ns, ctx.clock, reached_ns, "the proxy has a request before ctx does")
    if gen:
        reached_ns = gen.first("server_arrival_time", "arrival_time")
        if ctx and not together:
            answered_ns = ctx.first("server_first_token_time", "first_token_time")
            before(ctx.clock, answered_ns, gen.clock, reached_ns, "gen is called after ctx answered")
        else:
            before(proxy_clock, sent_ns, gen.clock, reached_ns, "the proxy has a request before gen does")
        if ctx:
            written_ns, read_ns = ctx.at.get("first_token_time"), gen.at.get("kv_cache_transfer_end")
            before(ctx.clock, written_ns, gen.clock, read_ns, "the last KV is read after it was written")
        token_ns = gen.first("server_first_token_time", "first_token_time")
        before(gen.clock, token_ns, proxy_clock, first_token_ns, "the proxy sends a token after gen made it")


def _read_status(body: Mapping[str, Value], out: Reading) -> None:
    """The entry's status is a free word; only words that plainly say failure are taken as one."""
    status = str(body.get("status") or "")
    if any(word in status.lower() for word in ("fail", "error")):
        out.failures.append(Failure("", f"TensorRT-LLM reports status {status!r}"))
        out.fact("answered", False)  # also when it failed after a first token


def _read_cache(body: Mapping[str, Value], out: Reading) -> None:
    for side in ("ctx_perf_metrics", "gen_perf_metrics", "perf_metrics"):
        part = body.get(side)
        metrics = part.get("perf_metrics", part) if isinstance(part, Mapping) else {}
        cache = metrics.get("kv_cache_metrics") if isinstance(metrics, Mapping) else None
        reused = as_int(cache.get("num_reused_blocks")) if isinstance(cache, Mapping) else None
        if reused is not None:
            text = "KV blocks found in this worker's cache; tokens are not known without its block size"
            out.evidence.append(Evidence(f"{side.removesuffix('_perf_metrics')}_reused_blocks", reused, "", text))


def _generation_first(body: Mapping[str, Value]) -> bool:
    """Both workers called together: then the ctx request carries the global id as its ctx_request_id."""
    disagg_id = as_int(body.get("disagg_request_id"))
    parts = [body.get("ctx_perf_metrics"), body.get("gen_perf_metrics")]
    ctx_ids = {as_int(part.get("ctx_request_id")) for part in parts if isinstance(part, Mapping)}
    return disagg_id is not None and disagg_id in ctx_ids


def _stamp(body: Mapping[str, Value], name: str) -> int | None:
    """A proxy stamp in ns; -1, 0 and absent are unknown."""
    stamp_ns = seconds_to_ns(body.get(name))
    return stamp_ns if stamp_ns is not None and stamp_ns > 0 else None
