"""Dynamo's front end span ``http-request``: the window, the first token, the facts and how the request ended.

Owns the edge and the evidence of the outcome. Does not read routing or workers (dynamo_routing), nor decides outcomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pdtrace.dialects.contract import Tree, as_int, clock_of, ms_to_ns
from pdtrace.dialects.dynamo_routing import DIALECT, failed_stage
from pdtrace.model import Before, Edge, Evidence, Failure, Reading, Span, SpanEvent, TtftClaim

#: error_type of the event ``request completed`` -> HTTP status, for spans without the event ``http response sent``.
#: Source: ErrorType in lib/llm/src/http/service/metrics.rs; ``overload`` was seen as 529 in 1.5.1.
_STATUS_OF_ERROR_TYPE: Final = {
    "validation": 400,
    "not_found": 404,
    "overload": 529,
    "internal": 500,
    "not_implemented": 501,
}
#: How a worker refuses a prompt that can never fit, as it reaches the front end inside a 200 stream.
_OVER_LONG: Final = "request exceeds worker admission limits"
_OVERLOADED: Final = 529
#: Spans that wrap /v1/completions (_batch for a list of prompts): lib/llm/src/http/service/openai.rs.
_WRAPS: Final = frozenset({"completions", "completions_batch", "completions_single"})
#: ttft_ms is taken by a steady clock and printed with two decimals; the span's stamps are wall-clock time.
_ROUNDING_NS: Final = 1_000_000


def read(mine: Sequence[Span], tree: Tree, out: Reading) -> None:
    """Append what the http-request spans among ``mine`` say; legs must have been read before."""
    wrapped = not _WRAPS.isdisjoint([span.name for span in mine])
    for span in mine:
        if span.name == "http-request":
            _read_one(span, _events_with_wraps(span, tree) if wrapped else span.events, out)


def _read_one(span: Span, events: Sequence[SpanEvent], out: Reading) -> None:
    attributes = span.attributes
    said: dict[str, SpanEvent] = {}  # the first event of each name
    for event in events:
        said.setdefault(event.name, event)
    received, completed = said.get("request received"), said.get("request completed")
    first_token_ns = _first_token(span, received, out)
    status = _http_status(said.get("http response sent"), completed)
    out.edges.append(
        Edge(
            kind="frontend",
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            clock=clock_of(span),
            span_id=span.span_id,
            trace_id=span.trace_id,
            dialect=DIALECT,
            first_token_ns=first_token_ns,
            http_status=status,
        )
    )
    out.fact("request_id", attributes.get("request_id") or attributes.get("x_request_id"))
    if attributes.get("request_id") and attributes.get("x_request_id"):
        out.fact("aliases", [str(attributes["x_request_id"])])
    spoken = received.attributes if received else {}
    out.fact("model", attributes.get("model") or spoken.get("model"))
    if spoken.get("request_type") in ("stream", "unary"):
        out.fact("stream", spoken["request_type"] == "stream")
    # 0 input tokens is what the front end writes when it never counted them.
    out.fact("input_tokens", as_int(attributes.get("input_tokens")) or None)
    out.fact("output_tokens", as_int(attributes.get("output_tokens")))
    out.fact("prefill_worker", attributes.get("prefill_worker_id"))
    out.fact("decode_worker", attributes.get("decode_worker_id"))
    out.fact("http_status", status)
    if first_token_ns is not None:
        _tell_order(span, first_token_ns, out)
    _tell_end(span, status, completed, events, out)


def _events_with_wraps(span: Span, tree: Tree) -> list[SpanEvent]:
    """Events of the span and, for /v1/completions, of the spans that wrap it; each is a log line of the front end."""
    wraps = [below for below in tree.descendants(span) if below.name in _WRAPS]
    return [*span.events, *(event for below in wraps for event in below.events)]


def _first_token(span: Span, received: SpanEvent | None, out: Reading) -> int | None:
    """When the front end sent the first token, Unix ns; None if it reported none or nonsense.

    ``ttft_ms`` ("115.72") counts from the log line ``request received``, not from the span's start: between them lie
    the reading and parsing of the body, 0.2 ms as a rule and up to 465 ms when the front end is busy. Counted from the
    span's start, D would have begun up to 428 ms after the first token in 7 requests of captures a and b.
    Source: start_time of ResponseMetricCollector in lib/llm/src/http/service/metrics.rs, and those captures.
    """
    reported = span.attributes.get("ttft_ms")
    if reported is None:
        return None
    ttft_ns = ms_to_ns(reported)
    if ttft_ns is None or ttft_ns < 0:
        out.warn("bad_ttft", f"http-request reports ttft_ms {reported!r}; a number of ms >= 0 would be right")
        return None
    began_ns = received.time_ns if received is not None and received.time_ns > span.start_ns else span.start_ns
    first_token_ns = began_ns + ttft_ns
    if span.end_ns and first_token_ns > span.end_ns + _ROUNDING_NS:
        late_ms = (first_token_ns - span.end_ns) / 1e6
        out.warn("bad_ttft", f"http-request reports ttft_ms {reported!r}: {late_ms:.2f} ms after its own end; not used")
        return None
    measures = "the front end's own count: from the moment it had read the request to the first token it sent"
    out.ttft_claims.append(TtftClaim("frontend", ttft_ns, measures))
    if received is not None:
        text = "reading and parsing the request, before the front end began to count its TTFT; part of the window"
        out.evidence.append(Evidence("frontend_ttft_origin", began_ns - span.start_ns, "ns", text, span.span_id))
    return first_token_ns


def _tell_order(span: Span, first_token_ns: int, out: Reading) -> None:
    """The answering worker began before the front end had its first token."""
    workers = {(leg.worker, leg.attempt) for leg in out.legs if leg.role in ("decode", "aggregated") and not leg.failed}
    for envelope in out.envelopes:
        if envelope.trace_id == span.trace_id and (envelope.worker, envelope.attempt) in workers:
            why = "worker began before the front end had its first token"
            out.before.append(Before(envelope.clock, envelope.start_ns, clock_of(span), first_token_ns, why))


def _http_status(sent: SpanEvent | None, completed: SpanEvent | None) -> int | None:
    """The status sent, else what the error type stands for; None if the front end sent no answer (client gone)."""
    if sent is not None:
        return as_int(sent.attributes.get("status"))
    if completed is not None:
        return _STATUS_OF_ERROR_TYPE.get(str(completed.attributes.get("error_type", "")))
    return None


def _tell_end(
    span: Span, status: int | None, completed: SpanEvent | None, events: Sequence[SpanEvent], out: Reading
) -> None:
    outcome = span.attributes.get("request.outcome")
    error_type = str(completed.attributes.get("error_type", "")) if completed else ""
    if outcome == "cancelled" or error_type == "cancelled":
        out.fact("client_cancelled_ns", _cancelled_ns(span, completed, events, out))
        return
    if error_type == "response_timeout":
        # What broke was the front end's patience, not a stage: the workers may well have gone on.
        out.fact("timed_out_ns", completed.time_ns if completed else span.end_ns)
        out.fact("error", completed.attributes.get("error_detail") if completed else None)
        return
    if outcome == "success" or (outcome is None and status == 200 and "ttft_ms" in span.attributes):
        # The status code of the span may be ERROR all the same, after a migration that worked.
        out.fact("answered", value=True)
        return
    if outcome == "error" or span.status == 2:
        _tell_error(status, completed, events, out)


def _tell_error(status: int | None, completed: SpanEvent | None, events: Sequence[SpanEvent], out: Reading) -> None:
    stream_error = _said(events, "Streaming error: ")
    overload = _said(events, "Service temporarily overloaded: ")
    said = str(completed.attributes.get("error_detail", "")) if completed else ""
    text = stream_error or overload or said or (f"HTTP status {status}" if status else "error")
    out.fact("error", text)
    if _OVER_LONG in stream_error:
        out.fact("over_long_prompt", value=True)
    elif status == _OVERLOADED:
        _tell_rejection(events, out)
    elif status is None or status < 400:
        # A worker's stream broke, or the front end gave up: the leg that failed, else the last one dispatched.
        out.fact("edge_failed", value=True)  # whatever D says of itself: the user saw a broken stream
        last = max(out.legs, key=lambda leg: (leg.failed, leg.start_ns), default=None)
        at_ns = completed.time_ns if completed else 0
        if last:
            out.failures.append(Failure(failed_stage(last), text, at_ns, last.worker, last.attempt))
        else:
            out.failures.append(Failure("route", text, at_ns))


def _tell_rejection(events: Sequence[SpanEvent], out: Reading) -> None:
    """Say whether P had finished when the request was refused: D's capacity is asked only after the prefill."""
    finished = any(leg.role == "prefill" and leg.end_ns and not leg.failed for leg in out.legs)
    out.fact("prefill_finished", finished)
    if any(event.name.startswith("request rejected by prefill worker") for event in events):
        out.evidence.append(Evidence("rejected_by", "prefill", "", "no prefill worker had room; nothing was computed"))
    elif finished:
        out.evidence.append(
            Evidence("rejected_by", "decode", "", "no decode worker had room; the prefill was for nothing")
        )


def _cancelled_ns(span: Span, completed: SpanEvent | None, events: Sequence[SpanEvent], out: Reading) -> int:
    """When the front end first acted on the client's absence: an upper bound of when the client left.

    Dynamo looks at the connection only between steps: a client gone at 81 ms was noticed at 374 ms, after the prefill.
    """
    stamps = [event.time_ns for event in events if event.name == "request cancelled before worker dispatch"]
    if completed:
        stamps.append(completed.time_ns)
    text = "when the front end noticed that the client had gone; the client may have left earlier"
    at_ns = min(stamps, default=span.end_ns)
    out.evidence.append(Evidence("client_cancel_noticed", at_ns, "unix_ns", text, span.span_id))
    return at_ns


def _said(events: Sequence[SpanEvent], marker: str) -> str:
    """What the log line that begins with ``marker`` says, "" if there is none.

    Event names are log lines, and one can hold a whole backtrace: only its first line is kept.
    """
    for event in events:
        if event.name.startswith(marker):
            return event.name.removeprefix(marker).partition("\n")[0].strip()[:300]
    return ""
