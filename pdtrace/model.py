"""The words every stage of the pipeline shares: what came in (Span, Record, Log, Point), what a dialect made of it
(Activity, Envelope, Leg, Edge, ...), and what assembly and charging make of that (Request).

Owns plain data only. Does not parse, group, charge or store. All times are integer nanoseconds of Unix time
unless a name says otherwise; ids are lower-case hex; worker ids are strings (u64 above 2**63 exist).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

# --------------------------------------------------------------------------------------------------- what came in

Value = Any  # str | bool | int | float | bytes | list[Value] | dict[str, Value] | None: an OTLP AnyValue as Python


SpanKey = str  # trace id followed by span id, 48 hex digits


class SpanEvent(NamedTuple):
    """A timed event on a span (OTLP Span.Event)."""

    time_ns: int
    name: str
    attributes: dict[str, Value]


@dataclass(slots=True, eq=False)
class Span:
    """One OTLP span as it came, ids as hex.

    ``end_ns`` 0 means the span has started and not ended. ``resource`` is shared by all spans of a batch.
    """

    trace_id: str  #: 32 hex digits
    span_id: str  #: 16 hex digits
    parent_id: str  #: 16 hex digits, "" for a root
    name: str
    kind: int  #: OTLP SpanKind: 1 internal, 2 server, 3 client, 4 producer, 5 consumer
    start_ns: int
    end_ns: int
    scope: str  #: instrumentation scope name
    resource: Mapping[str, Value]
    attributes: dict[str, Value]
    events: list[SpanEvent] = field(default_factory=list)
    links: list[tuple[str, str]] = field(default_factory=list)  #: (trace_id, span_id)
    status: int = 0  #: 0 unset, 1 ok, 2 error
    status_message: str = ""
    received_ns: int = 0

    #: Identity of the span: trace id and span id. One string, because a string remembers its hash. Made with the span
    #: and not when first asked for: a class with a ``__getattr__`` pays for it at every access to every field.
    key: SpanKey = field(init=False, repr=False)
    parent_key: SpanKey = field(init=False, repr=False)  #: identity of the parent; "" for a root

    def __post_init__(self) -> None:
        self.key = self.trace_id + self.span_id
        self.parent_key = self.trace_id + self.parent_id if self.parent_id else ""


@dataclass(slots=True, eq=False)
class Record:
    """A fact about one request that did not come as a span: a request-trace line, a /perf_metrics entry, ..."""

    kind: str  #: e.g. "dynamo.request_trace", "trtllm.perf_metrics"
    key: str  #: identity within the kind (duplicates are dropped on it); usually the request id
    time_ns: int  #: wall clock of the fact, 0 if it carries none
    body: dict[str, Value]
    trace_id: str = ""  #: hex, if the record says so
    received_ns: int = 0

    @property
    def source(self) -> str:
        """What this record is filed under, as a trace id files spans."""
        return f"record:{self.kind}:{self.key}"


@dataclass(slots=True, eq=False)
class Log:
    """One OTLP log record as it came."""

    time_ns: int  #: time_unix_nano, else observed_time_unix_nano
    severity: str
    event_name: str
    body: Value
    scope: str
    resource: Mapping[str, Value]
    attributes: dict[str, Value]
    trace_id: str = ""
    span_id: str = ""
    received_ns: int = 0


@dataclass(slots=True, eq=False)
class Point:
    """One OTLP metric data point as it came."""

    name: str
    kind: Literal["gauge", "sum", "histogram", "exponential_histogram", "summary"]
    unit: str
    time_ns: int
    start_ns: int  #: 0 if unset
    scope: str
    resource: Mapping[str, Value]
    attributes: dict[str, Value]
    value: float | int | None  #: gauges and sums; None for the others
    distribution: dict[str, Value] | None = None  #: count, sum, bounds, buckets, ... of the others
    temporality: int = 0  #: 0 unspecified, 1 delta, 2 cumulative
    monotonic: bool = False
    received_ns: int = 0


@dataclass(slots=True, eq=False)
class Rejection:
    """Something that came in and was not kept: counted, never silent."""

    what: str  #: "span", "line", "record", "point", "log", "request", "file"
    where: str  #: "grpc", "http", or path:line
    reason: str  #: a sentence: what is wrong and what would be right
    count: int = 1


@dataclass(slots=True)
class Batch:
    """What one export request, file or tick brought, already checked: the unit that enters the pipeline."""

    spans: list[Span] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)


# ------------------------------------------------------------------------------------------- what a dialect says

Role = Literal["", "prefill", "decode", "aggregated"]
Part = Literal["edge", "worker", "leg", "stage", "inner", "noise"]
EdgeKind = Literal["", "client", "frontend", "router"]


class Key(NamedTuple):
    """Something that names one request in several traces."""

    kind: Literal["request_id", "room", "context_id", "trace_id"]  #: trace_id: a record that names a trace
    value: str
    scope: str = ""  #: e.g. the server inside which an integer id is unique; "" = everywhere


class Identity(NamedTuple):
    """What a span is, told from the span alone (no context): enough to group spans into requests.

    part: ``edge``  an outer span that stands for one user-visible request (front end, router, proxy, client);
          ``worker`` an engine's envelope of its work on one request;
          ``leg``    a CLIENT span: a call to a worker;
          ``stage``  something finer that names a stage or carries facts about the request;
          ``inner``  belongs to whatever request its ancestors belong to, makes no request by itself;
          ``noise``  never part of a request (probes, start-up, background queries): dropped, counted.
    """

    dialect: str
    part: Part
    keys: tuple[Key, ...] = ()
    role: Role = ""
    edge: EdgeKind = ""


@dataclass(slots=True)
class Activity:
    """An interval in which something is known to happen to a request.

    ``stage`` is one of stages.ACTIVITY_STAGES, or ``awaits_transfer``: a wait that is really waiting for another
    activity of the same request (normalisation turns what is left after the last transfer into decode_queue).
    """

    stage: str
    start_ns: int
    end_ns: int  #: 0 while open
    worker: str = ""
    role: Role = ""
    attempt: int = 0
    clock: str = ""  #: clock domain of both stamps
    span_id: str = ""  #: the span that says so
    dialect: str = ""
    rank: str = ""  #: parallel rank (e.g. "tp0"); ranks of one transfer chunk are merged
    chunk: str = ""  #: chunk id within the activity; ranks merge chunk by chunk
    side: Literal["", "send", "receive"] = ""  #: handoff only: whose stamps these are
    failed: bool = False
    hedge: bool = False  #: a declared hedge: not cut where the next attempt starts
    gpus: int | None = None  #: GPUs of the worker, if known
    detail: dict[str, Value] = field(default_factory=dict)  #: bytes, states, backend, ... for display and audits


@dataclass(slots=True)
class Envelope:
    """One worker's whole visit by one request, with the exact durations it reports but no stamps for them.

    Normalisation places the durations (definitions: from the right, against the first token) and adds the opaque
    remainder. ``role`` may be "" when only context tells (a leg's phase, service name, order).
    """

    role: Role
    worker: str
    start_ns: int
    end_ns: int  #: 0 while open
    clock: str
    span_id: str
    dialect: str
    trace_id: str = ""
    attempt: int = 0
    first_token_ns: int | None = None  #: the worker's own first token, its clock
    queue_ns: int | None = None  #: reported queue time; evidence (the residual against it is shown)
    prefill_ns: int | None = None  #: reported time in the model before the first token
    void_durations: bool = False  #: a reported duration was negative: nothing of this span's durations is used
    role_hint: Role = ""  #: weaker than a leg's phase: service name, max_tokens == 1, ...
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    failed: bool = False
    error: str = ""
    finished: bool = True  #: it reported a regular finish
    gpus: int | None = None
    prefill_stage: bool = True  #: False: nothing in it may be called prefill (includes a queue it cannot tell apart)


@dataclass(slots=True)
class Leg:
    """A call to a worker, seen from the caller. If the worker sent no span it stands for the worker's envelope."""

    role: Role
    worker: str
    start_ns: int
    end_ns: int
    clock: str
    span_id: str
    dialect: str
    trace_id: str = ""
    attempt: int = 0
    http_status: int | None = None
    failed: bool = False
    error: str = ""
    end_is_trusted: bool = True  #: False where the source's spans outlive the call (vllm-router)


@dataclass(slots=True)
class Edge:
    """The outer span of a request."""

    kind: EdgeKind
    start_ns: int
    end_ns: int  #: 0 while open
    clock: str
    span_id: str
    trace_id: str
    dialect: str
    first_token_ns: int | None = None
    http_status: int | None = None
    end_is_trusted: bool = True


class TtftClaim(NamedTuple):
    """A TTFT that some component reported, kept beside the request's own with what it really measures."""

    name: str  #: client, frontend, router, prefill_engine, decode_engine, dynamo_nvext, llmd_true_ttft, estimate
    ttft_ns: int
    measures: str


class Evidence(NamedTuple):
    """A number or fact that is shown but not charged."""

    name: str
    value: Value
    unit: str  #: "ns", "tokens", "", ...
    text: str  #: what it means and why it is not a section
    span_id: str = ""


class RequestWarning(NamedTuple):
    """An adjustment, a gap or a doubt, visible to the user. ``code`` is stable snake_case."""

    code: str
    text: str


@dataclass(slots=True)
class Failure:
    """Something that failed, at a stage if known."""

    stage: Literal["", "route", "prefill", "handoff", "decode"]
    text: str
    time_ns: int = 0
    worker: str = ""
    attempt: int = 0


class Before(NamedTuple):
    """A causal edge: the event at (clock_a, a_ns) happened before the one at (clock_b, b_ns)."""

    clock_a: str
    a_ns: int
    clock_b: str
    b_ns: int
    why: str


@dataclass(slots=True)
class Reading:
    """All that the dialects read out of one request's spans and records. Dialects append; nothing is computed here."""

    edges: list[Edge] = field(default_factory=list)
    legs: list[Leg] = field(default_factory=list)
    envelopes: list[Envelope] = field(default_factory=list)
    activities: list[Activity] = field(default_factory=list)
    ttft_claims: list[TtftClaim] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    warnings: list[RequestWarning] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    before: list[Before] = field(default_factory=list)
    #: Request-level facts. Known names: request_id, aliases (list), model, run, input_tokens, output_tokens,
    #: cached_tokens (P's truth only), predicted_cached_tokens, finish_reason, stream (bool), attempts (int),
    #: http_status (int), outcome (a reported outcome of the ledger's vocabulary), error (text), mode, token_times
    #: (list of Unix ns), client_cancelled_ns (int), timed_out_ns (int), over_long_prompt (bool), edge_failed (bool: the
    #: edge says that the answer broke, inside a 200 too),
    #: prefill_worker, decode_worker, answered (bool: a regular finish was seen on the answering side),
    #: first_token_ns + first_token_clock (D's first token when no envelope carries it).
    facts: dict[str, Value] = field(default_factory=dict)

    def fact(self, name: str, value: Value) -> None:
        """Keep ``value`` under ``name`` unless a fact of that name is there already or the value is None or ""."""
        if value is not None and value != "":
            self.facts.setdefault(name, value)

    def warn(self, code: str, text: str) -> None:
        """Leave a warning once per code and text."""
        warning = RequestWarning(code, text)
        if warning not in self.warnings:
            self.warnings.append(warning)


# ----------------------------------------------------------------------------------------------------- the result


class Section(NamedTuple):
    """A piece of the window charged to exactly one stage."""

    stage: str
    start_ns: int
    end_ns: int


class ClockOffset(NamedTuple):
    """What is known of one clock against the request's reference clock."""

    clock: str
    reference: str
    low_ns: int | None  #: add at least this to the clock's stamps; None = no bound
    high_ns: int | None
    applied_ns: int  #: what was added to place activities; 0 = nothing moved


@dataclass(slots=True)
class Request:
    """One user-visible inference call, with its window, sections and everything a page or a query needs."""

    uid: str  #: unique and stable for the same spans in any order
    request_id: str
    aliases: list[str] = field(default_factory=list)
    trace_ids: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)  #: trace ids and record sources it was made of
    dialects: list[str] = field(default_factory=list)
    model: str | None = None
    run: str | None = None
    outcome: str = "unknown"
    outcome_text: str = ""
    mode: str = "unknown"
    t0_ns: int = 0  #: window start, on ``clock``
    t1_ns: int | None = None  #: first user-visible token; None = there was none
    end_ns: int | None = None  #: end of the request; None while open
    last_ns: int = 0  #: latest stamp seen
    received_ns: int = 0  #: latest receive time of its spans
    clock: str = ""
    ttft_ns: int | None = None
    ttft_basis: str | None = None
    ttft_claims: list[TtftClaim] = field(default_factory=list)
    prefill_worker: str | None = None
    decode_worker: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    attempts: int = 1
    stitched_by: str = "none"
    sections: list[Section] = field(default_factory=list)  #: tile [t0, t1]; empty without a first token
    sections_to_end: list[Section] = field(default_factory=list)  #: only without a first token
    hidden_ns: dict[str, int] = field(default_factory=dict)
    saving_ns: dict[str, int | None] = field(default_factory=dict)
    wasted_ns: int = 0
    wasted_gpu_seconds: float | None = None
    http_status: int | None = None
    activities: list[Activity] = field(default_factory=list)  #: normalised, on ``clock``, sorted
    evidence: list[Evidence] = field(default_factory=list)
    warnings: list[RequestWarning] = field(default_factory=list)
    offsets: list[ClockOffset] = field(default_factory=list)
    token_times_ns: list[int] = field(default_factory=list)
    span_count: int = 0

    def section_totals(self) -> dict[str, int]:
        """Stage -> charged ns inside the TTFT window; sums to ttft_ns exactly. Stages with nothing are absent."""
        return _totals(self.sections)

    def section_totals_to_end(self) -> dict[str, int]:
        """Stage -> charged ns from t0 to the end (or to now) of a request without a first token."""
        return _totals(self.sections_to_end)


def _totals(sections: list[Section]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for stage, start_ns, end_ns in sections:
        totals[stage] = totals.get(stage, 0) + end_ns - start_ns
    return totals
