"""What a dialect is: the only kind of file that knows one engine's names.

Owns the contract and the view of one request's spans that a dialect reads. Knows no engine.

A dialect answers two questions. ``identify`` looks at one span without context: is it mine, and what part does it
play? It must be cheap: it runs once for every span. ``read`` gets all spans of one request that are its own, with
the tree around them, and appends what they say to a Reading. What a dialect cannot know it leaves out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from operator import attrgetter
from typing import Final, Protocol

from pdtrace.model import Identity, Key, Log, Reading, Record, Span, SpanKey

#: The order of spans everywhere: by start, then by identity.
BY_START: Final = attrgetter("start_ns", "key")


class Tree:
    """The spans of one request: parents, children and identities, across traces."""

    def __init__(self, spans: Sequence[Span], identities: dict[SpanKey, Identity]) -> None:
        self.spans = sorted(spans, key=BY_START)
        self._identities = identities
        self._by_key = {s.key: s for s in self.spans}
        self._children_by_key: dict[SpanKey, list[Span]] | None = None  # few dialects ask

    def identity(self, span: Span) -> Identity:
        """What ``span`` was identified as."""
        return self._identities[span.key]

    def find(self, trace_id: str, span_id: str) -> Span | None:
        """The span with this identity, if it is part of the request."""
        return self._by_key.get(trace_id + span_id)

    def parent(self, span: Span) -> Span | None:
        """The parent, if it is part of the request."""
        return self._by_key.get(span.parent_key)

    def children(self, span: Span) -> list[Span]:
        """Direct children, by start."""
        if self._children_by_key is None:
            self._children_by_key = {}
            for each in self.spans:
                if each.parent_id:
                    self._children_by_key.setdefault(each.parent_key, []).append(each)
        return self._children_by_key.get(span.key, [])

    def ancestors(self, span: Span) -> Iterator[Span]:
        """Parent, grandparent, ... as far as they are here; safe against cycles."""
        seen = {span.key}
        above = self.parent(span)
        while above is not None and above.key not in seen:
            seen.add(above.key)
            yield above
            above = self.parent(above)

    def nearest_above(self, marked: Container[str]) -> Iterator[tuple[Span, Span]]:
        """(span, nearest ancestor) for every span whose id is ``marked`` and that has a marked ancestor; linear."""
        by_key = self._by_key
        above: dict[SpanKey, Span | None] = {}  # of spans that are not marked themselves
        for span in self.spans:
            if span.span_id not in marked:
                continue
            at = by_key.get(span.parent_key)
            if at is None or at.span_id in marked:
                if at is not None:
                    yield span, at
                continue
            passed: list[SpanKey] = []
            while at is not None and at.span_id not in marked:
                if at.key in above:
                    at = above[at.key]
                    break
                above[at.key] = None  # also ends a cycle
                passed.append(at.key)
                at = by_key.get(at.parent_key)
            for key in passed:
                above[key] = at
            if at is not None:
                yield span, at

    def descendants(self, span: Span) -> Iterator[Span]:
        """All spans below, in no promised order; iterative, safe against depth and cycles."""
        seen = {span.key}
        stack = list(self.children(span))
        while stack:
            below = stack.pop()
            if below.key in seen:
                continue
            seen.add(below.key)
            yield below
            stack.extend(self.children(below))


class Dialect(Protocol):
    """One engine's words. Stateless; one instance serves all threads."""

    @property
    def name(self) -> str:
        """Short snake_case name, unique among dialects."""

    @property
    def blind_spots(self) -> tuple[str, ...]:
        """What this dialect can never tell, in words, for `pdtrace doctor` and the Health page."""

    def identify(self, span: Span) -> Identity | None:
        """The part ``span`` plays, or None if it is not this dialect's."""

    def read(self, mine: Sequence[Span], tree: Tree, out: Reading) -> None:
        """Append what ``mine`` (never empty, sorted by start) says to ``out``."""

    def record_from_log(self, log: Log) -> Record | None:
        """The request fact that a log record carries, if this dialect logs such facts."""

    def record_keys(self, record: Record) -> tuple[Key, ...] | None:
        """Keys that tie ``record`` to a request, or None if the record is not this dialect's."""

    def read_record(self, record: Record, out: Reading) -> None:
        """Append what one record says to ``out``."""


class SpansOnly:
    """Base for dialects that read spans and nothing else."""

    blind_spots: tuple[str, ...] = ()

    def record_from_log(self, log: Log) -> Record | None:
        """No log record of this dialect carries request facts."""
        return None

    def record_keys(self, record: Record) -> tuple[Key, ...] | None:
        """No records in this dialect."""
        return None

    def read_record(self, record: Record, out: Reading) -> None:
        """Never called: ``record_keys`` claims nothing."""


def clock_of(span: Span) -> str:
    """Clock domain of a span's stamps: host, else process, else service; on the span or its resource, the span wins.

    Source: definitions, section 8 (host, else process).
    """
    own, shared = span.attributes.get, span.resource.get
    host = own("host.id") or shared("host.id") or own("host.name") or shared("host.name")
    if host:
        return f"host:{host}"
    process = own("service.instance.id") or shared("service.instance.id") or shared("service.name")
    return f"process:{process}" if process else f"scope:{span.scope}"


def worker_of(span: Span) -> str:
    """Worker id: service.instance.id of the span, else of its resource, else service.name."""
    own, shared = span.attributes.get, span.resource.get
    return str(own("service.instance.id") or shared("service.instance.id") or shared("service.name") or "")


def as_int(value: object) -> int | None:
    """Integers as engines send them: int, integral float or decimal string; anything else is None.

    So is what does not fit 64 bits: no counter, status or id that pdtrace knows is larger, and a store column cannot
    hold it.
    """
    number: int | None = None
    if type(value) is int:  # the usual case first; a bool is not meant
        number = value
    elif value is None:
        return None
    elif isinstance(value, float):
        number = int(value) if value.is_integer() else None
    elif isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            return None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def as_float(value: object) -> float | None:
    """Numbers as engines send them: number or string; NaN, infinities and anything else are None."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number == number and abs(number) != float("inf") else None


def seconds_to_ns(value: object) -> int | None:
    """A duration in seconds, as integer nanoseconds (rounded); None if it is no number or beyond 146 years."""
    return _duration_ns(value, 1e9)


def ms_to_ns(value: object) -> int | None:
    """A duration in milliseconds, as integer nanoseconds (rounded); None if it is no number or beyond 146 years."""
    return _duration_ns(value, 1e6)


def _duration_ns(value: object, ns_per_unit: float) -> int | None:
    number = as_float(value)
    if number is None or abs(number * ns_per_unit) >= 1 << 62:  # added to a stamp it must stay within 64 bits
        return None
    return round(number * ns_per_unit)
