"""The pipeline, start to end: a batch of telemetry in, stored raw and derived requests out.

A newcomer's first file, and the only place that chains the stages. Owns what is dirty and what is kept in memory;
knows no engine, no SQL and no transport.

    add(batch)     identify spans, store them raw with their join keys, remember which sources changed
    derive(now)    for every changed source: everything that may belong to the same request (its closure over join
                   keys), assembled and charged anew, replacing what the store holds

A source is a trace id or a record. Derived requests are a pure function of the raw telemetry of a closure, so any
order, split or repetition of the same spans ends in the same requests.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable
from itertools import islice

from pdtrace import garbage
from pdtrace.assemble import Limits, derive, identify, keys_of_record
from pdtrace.assemble.units import JOIN_WINDOW_NS
from pdtrace.dialects import DIALECTS
from pdtrace.model import Batch, Identity, Key, Record, Rejection, Request, Span, SpanKey
from pdtrace.store.contract import Added, KeyRow, Store

log = logging.getLogger(__name__)

#: Spans kept in memory for requests that may still grow; beyond it the least recently touched sources are dropped
#: and read back from the store when something late arrives.
MOST_SPANS_IN_MEMORY = 250_000


class Pipeline:
    """Chains the stages over one store. Used by one thread at a time (the writer).

    Args:
        store: Where raw and derived tables live.
        max_clock_shift_ns: Larger clock shifts are proposed, not applied.
        quiet_ns: An open request that nothing was heard of for this long becomes ``unknown``.
        run: Label for what this pipeline ingests, where the telemetry carries none.
    """

    def __init__(
        self,
        store: Store,
        *,
        max_clock_shift_ns: int = Limits().max_clock_shift_ns,
        quiet_ns: int = Limits().quiet_ns,
        run: str | None = None,
        most_spans_in_memory: int = MOST_SPANS_IN_MEMORY,
    ) -> None:
        self._store = store
        self._limits = Limits(max_clock_shift_ns, quiet_ns)
        self._run = run
        self._memory = _Memory(store, most_spans_in_memory)
        self._dirty: set[str] = set()
        self._open: dict[str, Request] = {}
        self._told: set[str] = set()
        self.failures = 0  #: closures that could not be derived, each time they were tried

    def add(self, batch: Batch) -> Added:
        """Store a batch raw; what is new will be derived by the next ``derive``."""
        with garbage.paused():
            return self._add(batch)

    def _add(self, batch: Batch) -> Added:
        for log in batch.logs:
            for dialect in DIALECTS:
                record = dialect.record_from_log(log)
                if record is not None:
                    batch.records.append(record)
                    break
        identities = _identities(batch.spans)
        ties = _ties(batch.spans, batch.records, identities)
        added = self._store.add(batch, [*_keys_of(ties), *_labels(batch, self._run)])
        if len(added.spans) < len(batch.spans) or len(added.records) < len(batch.records):  # of two copies one stays
            identities = _identities(added.spans)
            ties = _ties(added.spans, added.records, identities)
        self._memory.put(added.spans, added.records, identities, ties)
        self._dirty.update(span.trace_id for span in added.spans)
        self._dirty.update(record.source for record in added.records)
        return added

    @property
    def dirty(self) -> int:
        """Sources that changed since the last ``derive``."""
        return len(self._dirty)

    def derive(self, now_ns: int | None = None, *, most_sources: int | None = None) -> int:
        """Derive requests that may have changed; returns how many there are now.

        Args:
            now_ns: Wall clock of a live service; None when files are read and what is open is ``unknown``.
            most_sources: Stop after about this many changed sources (the rest stays dirty): a live service stores
                what came in the meantime before it goes on. None = all of them.
        """
        total, left = 0, len(self._dirty) if most_sources is None else most_sources
        while self._dirty and left > 0:
            step = set(islice(self._dirty, min(left, _STEP_SOURCES)))
            left -= len(step)
            with garbage.paused():
                total += self._derive(step, now_ns)
        return total

    def _derive(self, changed: set[str], now_ns: int | None) -> int:
        sources = self._memory.closure(changed)
        try:
            requests = self._requests_of(sources, now_ns)
        except Exception:  # noqa: BLE001 - whatever one request does to a dialect, the others must not wait for it
            requests = self._requests_apart(sources, now_ns)
        self._label(requests, sources)
        self._store.replace_requests(sources, requests)
        self._dirty -= sources
        self._remember_open(sources, requests)
        self._memory.shrink()
        return len(requests)

    def sweep(self, now_ns: int | None = None) -> int:
        """Close in-flight requests that nothing was heard of for the quiet time; returns how many were derived."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        for request in self._open.values():
            if now_ns - (request.received_ns or request.last_ns) > self._limits.quiet_ns:
                self._dirty.update(request.sources)
        return self.derive(now_ns) if self._dirty else 0

    def resume(self, open_sources: Iterable[str]) -> None:
        """Take up requests that were in flight when the store was closed."""
        self._dirty.update(open_sources)

    def rederive(self, now_ns: int | None = None) -> int:
        """Rebuild every derived table from the raw ones; returns the number of requests."""
        self._store.clear_derived()
        self._open.clear()
        self._dirty.update(self._store.sources())
        return self.derive(now_ns)

    def _requests_of(self, sources: Collection[str], now_ns: int | None) -> list[Request]:
        spans, records, identities = self._memory.fetch(sources)
        return derive(spans, records, now_ns=now_ns, limits=self._limits, identities=identities)

    def _requests_apart(self, sources: Collection[str], now_ns: int | None) -> list[Request]:
        """Something in ``sources`` cannot be derived: closure by closure, leaving out (counted) those that fail."""
        requests: list[Request] = []
        rejections: list[Rejection] = []
        waiting = set(sources)
        while waiting:
            closure = self._memory.closure({min(waiting)})
            waiting -= closure
            try:
                requests += self._requests_of(closure, now_ns)
            except Exception as problem:
                reason = f"deriving failed ({type(problem).__name__}: {problem}); a fault of pdtrace, please report it"
                rejections.append(Rejection("request", "derive", " ".join(reason.split())[:500]))
                if reason not in self._told:  # once each: a request that grows is derived again and again
                    self._told.add(reason)
                    log.error("%s; first in %s", reason, ", ".join(sorted(closure)[:3]), exc_info=problem)
        self.failures += len(rejections)
        if rejections:
            self._store.add(Batch(rejections=rejections))
        return requests

    def _label(self, requests: list[Request], sources: Collection[str]) -> None:
        """Put the run a user named at ingest on requests whose telemetry names none."""
        unlabelled = [request for request in requests if request.run is None]
        if not unlabelled:
            return
        runs = self._store.runs(sources)
        for request in unlabelled:
            named = sorted({runs[source] for source in request.sources if source in runs})
            request.run = named[0] if named else None

    def _remember_open(self, sources: Collection[str], requests: list[Request]) -> None:
        gone = [uid for uid, request in self._open.items() if not sources_disjoint(request.sources, sources)]
        for uid in gone:
            del self._open[uid]
        for request in requests:
            if request.outcome == "in_flight":
                self._open[request.uid] = request


#: Sources derived at a time: bounds memory, large enough to charge in dense blocks.
_STEP_SOURCES = 5_000


def sources_disjoint(mine: Iterable[str], others: Collection[str]) -> bool:
    """Whether no source of ``mine`` is among ``others``."""
    return not any(source in others for source in mine)


def _identities(spans: Iterable[Span]) -> dict[SpanKey, Identity]:
    return {span.key: identity for span in spans if (identity := identify(span)) is not None}


#: Join keys by source, each with the first and the last time it was seen at.
_Ties = dict[str, dict[Key, tuple[int, int]]]


def _ties(spans: Iterable[Span], records: Iterable[Record], identities: dict[SpanKey, Identity]) -> _Ties:
    ties: _Ties = {}
    for span in spans:
        identity = identities.get(span.key)
        if identity is not None and identity.keys:
            _widen(ties, span.trace_id, identity.keys, span.start_ns, span.end_ns)
    for record in records:
        if keys := _record_keys(record):
            _widen(ties, record.source, keys, record.time_ns, record.time_ns)
    return ties


def _widen(ties: _Ties, source: str, keys: tuple[Key, ...], start_ns: int, end_ns: int) -> None:
    inside = ties.get(source)
    if inside is None:
        inside = ties[source] = {}
    if end_ns < start_ns:  # still open
        end_ns = start_ns
    for key in keys:
        known = inside.get(key)
        if known is None:
            inside[key] = (start_ns, end_ns)
        elif start_ns < known[0] or end_ns > known[1]:
            inside[key] = (min(start_ns, known[0]), max(end_ns, known[1]))


def _keys_of(ties: _Ties) -> list[KeyRow]:
    return [
        KeyRow(source, key.kind, key.scope, key.value, *time)
        for source, inside in ties.items()
        for key, time in inside.items()
    ]


def _record_keys(record: Record) -> tuple[Key, ...]:
    """Keys of a record, and its trace id if it names one: a trace is then its neighbour."""
    keys = keys_of_record(record) or ()
    return (*keys, _trace_key(record.trace_id)) if record.trace_id else keys


def _trace_key(trace_id: str) -> Key:
    return Key("trace_id", trace_id)


def _labels(batch: Batch, run: str | None) -> list[KeyRow]:
    """The run label of an ingest, kept beside the raw telemetry of each source so that it survives a rederive."""
    if run is None:
        return []
    sources = {span.trace_id for span in batch.spans} | {record.source for record in batch.records}
    return [KeyRow(source, "run", "", run, 0, 0) for source in sorted(sources)]


class _Memory:
    """Raw spans and records of sources that may still grow, with the store behind it."""

    def __init__(self, store: Store, most_spans: int) -> None:
        self._store = store
        self._most_spans = most_spans
        self._spans: OrderedDict[str, dict[str, Span]] = OrderedDict()
        self._records: dict[str, Record] = {}
        self._identities: dict[SpanKey, Identity] = {}
        self._times: dict[str, tuple[int, int]] = {}
        self._keys: dict[str, set[Key]] = defaultdict(set)
        self._holders: dict[Key, set[str]] = defaultdict(set)
        #: Sources that the store holds and memory does not (their hashes: a million of them must stay small).
        self._elsewhere = {hash(source) for source in store.sources()}
        self._count = 0

    def put(
        self,
        spans: Collection[Span],
        records: Collection[Record],
        identities: dict[SpanKey, Identity],
        ties: _Ties,
    ) -> None:
        """Keep what was added, together with what the store holds of the same sources."""
        for source in {span.trace_id for span in spans} | {record.source for record in records}:
            if hash(source) in self._elsewhere:
                self._load([source])
        self._keep(spans, records, identities, ties)

    def _keep(
        self,
        spans: Collection[Span],
        records: Collection[Record],
        identities: dict[SpanKey, Identity],
        ties: _Ties,
    ) -> None:
        self._identities.update(identities)
        for span in spans:
            inside = self._spans.get(span.trace_id)
            if inside is None:
                inside = self._spans[span.trace_id] = {}
            self._count += span.span_id not in inside
            inside[span.span_id] = span
        for record in records:
            self._records[record.source] = record
            self._spans.setdefault(record.source, {})
        for source in {span.trace_id for span in spans} | {record.source for record in records}:
            self._spans.move_to_end(source)
        for source, keys in ties.items():
            for key, (start_ns, end_ns) in keys.items():
                self._keys[source].add(key)
                self._holders[key].add(source)
                known = self._times.get(source, (start_ns, end_ns))
                self._times[source] = (min(known[0], start_ns), max(known[1], end_ns))

    def _load(self, sources: Collection[str]) -> None:
        """Bring sources back from the store."""
        self._elsewhere.difference_update(hash(source) for source in sources)
        spans, records = self._store.load(sources)
        identities = _identities(spans)
        self._keep(spans, records, identities, _ties(spans, records, identities))

    def closure(self, dirty: Collection[str]) -> set[str]:
        """``dirty`` and every source that may hold a part of the same requests, all of them in memory."""
        found: set[str] = set()
        front = set(dirty)
        while front:
            away = [source for source in front if source not in self._spans or hash(source) in self._elsewhere]
            if away:
                self._load(away)
            found |= front
            front = self._sharing(front) - found
        return found

    def _sharing(self, sources: Collection[str]) -> set[str]:
        sharing: set[str] = set()
        asked: list[KeyRow] = []
        for source in sources:
            times = self._times.get(source, (0, 0))
            record = self._records.get(source)
            if record is None:  # a trace: records may name it
                asked.append(KeyRow(source, "trace_id", "", source, 0, 0))
                sharing |= self._holders.get(_trace_key(source), set())
            elif record.trace_id:
                sharing.add(record.trace_id)
            for key in self._keys.get(source, ()):
                sharing |= {other for other in self._holders[key] if self._near(times, other)}
                asked.append(KeyRow(source, key.kind, key.scope, key.value, *times))
        if self._elsewhere and asked:
            sharing |= self._store.sources_sharing(asked, JOIN_WINDOW_NS)
        return sharing

    def _near(self, times: tuple[int, int], other: str) -> bool:
        """Sources an hour apart may share a room and are still no neighbours."""
        others = self._times[other]
        if not times[0] or not others[0]:
            return True
        return max(times[0], others[0]) - min(times[1], others[1]) <= JOIN_WINDOW_NS

    def fetch(self, sources: Collection[str]) -> tuple[list[Span], list[Record], dict[SpanKey, Identity]]:
        """All spans and records of ``sources``, which a closure has brought into memory."""
        spans = [span for source in sources for span in self._spans.get(source, {}).values()]
        records = [self._records[source] for source in sources if source in self._records]
        return spans, records, self._identities

    def shrink(self) -> None:
        """Drop the least recently touched sources once too much is kept; all of it is in the store."""
        while self._count > self._most_spans:
            source, inside = self._spans.popitem(last=False)
            self._count -= len(inside)
            for span_id in inside:
                self._identities.pop(source + span_id, None)
            self._records.pop(source, None)
            self._times.pop(source, None)
            for key in self._keys.pop(source, ()):
                self._holders[key].discard(source)
                if not self._holders[key]:
                    del self._holders[key]
            self._elsewhere.add(hash(source))
