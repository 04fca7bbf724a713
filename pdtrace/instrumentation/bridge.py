"""Records as spans of a TracerProvider that the host program already has, instead of OTLP of our own.

Owns the way from a record to the OpenTelemetry API. The stage spans are made in the drainer; only the request's own span
(edge records) is started at once, so that its ids can be passed on and the provider's sampler decides. A stage span made
late costs the SDK what any span costs, in the drainer and under the GIL: where that matters, export directly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from pdtrace.instrumentation.clock import Clock
from pdtrace.instrumentation.context import Context, parse, render
from pdtrace.instrumentation.encode import is_failure, makes_sense, request_attributes, stage_spans
from pdtrace.instrumentation.export import Signal
from pdtrace.instrumentation.record import NO_RECORD, Record, Unrecorded
from pdtrace.instrumentation.recorder import Recorder
from pdtrace.instrumentation.resource import Resource

_EMPTY = OtelContext()


class _ByProvider:
    """The provider exports; worker states and counters have no place in it."""

    def export(self, signal: Signal, body: bytes) -> None:
        pass

    def close(self) -> None:
        pass


class _BridgedRecord(Record):
    """A record whose request span, if it has one, is a span of the provider."""

    __slots__ = ("span",)

    span: Span | None


class BridgedRecorder(Recorder):
    """A recorder whose spans go through an OpenTelemetry TracerProvider.

    The spans carry the provider's resource and are sampled by its sampler. Without a ``traceparent`` the current span of
    the calling context is the parent, as OpenTelemetry's own instrumentation would have it.

    Args:
        provider: None = the global one.
        capacity, clock, drain_every_s, background: As for a ``Recorder``.
    """

    def __init__(
        self,
        provider: trace.TracerProvider | None = None,
        *,
        capacity: int = 8192,
        clock: Clock | None = None,
        drain_every_s: float = 0.5,
        background: bool = True,
    ) -> None:
        self._tracer = (provider or trace.get_tracer_provider()).get_tracer("pdtrace")
        super().__init__(
            Resource(),
            _ByProvider(),
            capacity=capacity,
            clock=clock,
            drain_every_s=drain_every_s,
            background=background,
        )

    def begin(
        self,
        request_id: str = "",
        *,
        traceparent: str | None = None,
        edge: bool = False,
        attempt: int = 0,
        at_ns: int | None = None,
    ) -> Record:
        """See ``Recorder.begin``."""
        if not self.enabled:
            return NO_RECORD
        parent = parse(traceparent) or _current()
        if parent is not None and not parent.sampled:
            return self._leave_out(render(parent.trace_id, parent.span_id, sampled=False))
        now = self.clock.now_ns
        start_ns = now() if at_ns is None else at_ns
        span = None
        if edge:
            span = self._tracer.start_span(
                "pdtrace.request",
                context=_under(parent),
                kind=SpanKind.SERVER,
                start_time=self.clock.wall_ns(start_ns),
            )
            ids = span.get_span_context()
            if not span.is_recording():
                return self._leave_out(_render(ids) if ids.is_valid else "")
        next(self._ring.begun)
        offset_ns = None if self._system is None else self._system.offset_ns
        record = _BridgedRecord(self._ring, now, offset_ns, request_id, parent, edge, attempt, start_ns)
        record.span = span
        if span is not None:
            record.adopt(ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big"))
        return record

    def _leave_out(self, traceparent: str) -> Record:
        next(self._ring.begun)
        next(self._ring.sampled_out)
        return Unrecorded(self._ring, traceparent)

    def _deliver(self, records: list[Record]) -> None:
        for record in records:
            try:
                self._make_spans(record)
                self._outbox.exported += 1
            except Exception as problem:  # noqa: BLE001 - a span processor of the host's, or a value that is none
                self._outbox.failed += 1
                self._problems.add("cannot_encode")
                self._tell("cannot_encode", f"a record cannot be told as spans: {problem!r}")

    def _make_spans(self, record: Record) -> None:
        offset_ns, wall_ns = record.offset_ns, record.clock.wall_ns

        def unix_ns(stamp: int) -> int:
            return wall_ns(stamp) if offset_ns is None else stamp + offset_ns

        shared = {"pdtrace.request.id": record.request_id} if record.request_id else {}
        span = record.span if isinstance(record, _BridgedRecord) else None
        try:
            self._make_stage_spans(record, unix_ns, shared)
        finally:
            if span is not None:
                start_ns, end_ns = unix_ns(record.start_ns), unix_ns(record.end_ns)
                span.set_attributes(shared | _told(request_attributes(record, unix_ns, start_ns)))
                if is_failure(record):
                    span.set_status(Status(StatusCode.ERROR, record.error))
                if makes_sense(start_ns, end_ns, self._problems):
                    span.end(end_ns)  # else never: the provider exports what has ended

    def _make_stage_spans(self, record: Record, unix_ns: Callable[[int], int], shared: Mapping[str, Any]) -> None:
        above = None
        if record.edge or record.parent is not None:
            above = Context(record.trace_id_bytes, record.span_id_bytes, sampled=True)
        context = _under(above)
        for stage, start_ns, end_ns, attempt, attributes, failed in stage_spans(record, self._problems):
            start_ns, end_ns = unix_ns(start_ns), unix_ns(record.end_ns if end_ns is None else end_ns)
            if not makes_sense(start_ns, end_ns, self._problems):
                continue
            span = self._tracer.start_span(
                f"pdtrace.{stage}",
                context=context,
                attributes={**shared, "pdtrace.attempt": attempt, **_told(attributes)},
                start_time=start_ns,
            )
            if failed:
                span.set_status(Status(StatusCode.ERROR, failed))
            if above is None:  # no caller and no edge span: the first stage's trace is the others' too
                ids = span.get_span_context()
                above = Context(
                    ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big"), ids.trace_flags.sampled
                )
                context = _under(above)
            span.end(end_ns)


def _current() -> Context | None:
    """The host program's own span that is current here."""
    ids = trace.get_current_span().get_span_context()
    if not ids.is_valid:
        return None
    return Context(ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big"), ids.trace_flags.sampled)


def _under(parent: Context | None) -> OtelContext:
    """The OpenTelemetry context of a span below ``parent``; without one, of a root span whatever is current."""
    if parent is None:
        return _EMPTY
    ids = SpanContext(
        int.from_bytes(parent.trace_id, "big"),
        int.from_bytes(parent.span_id, "big"),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT),
    )
    return trace.set_span_in_context(NonRecordingSpan(ids), _EMPTY)


def _render(ids: SpanContext) -> str:
    return render(ids.trace_id.to_bytes(16, "big"), ids.span_id.to_bytes(8, "big"), sampled=False)


def _told(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without None, which OpenTelemetry takes for a mistake."""
    return {name: value for name, value in (attributes or {}).items() if value is not None}
