"""The one thread that writes: batches into the store, then the requests they touch.

Owns the rhythm (batch, derive, sweep), retries, and that one bad batch or request stops nobody. How a request is
derived is the pipeline's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import duckdb

from pdtrace.model import Batch, Rejection
from pdtrace.service.inbox import Arrival, Inbox
from pdtrace.store.contract import Added, StoreError

log = logging.getLogger(__name__)

MAX_SPANS: Final = 10_000  #: spans of one transaction
MAX_WAIT_S: Final = 0.2  #: how long the first span of a transaction waits for others
DERIVE_EVERY_S: Final = 0.5
DERIVE_SOURCES: Final = 2_000  #: changed sources derived before what came in the meantime is stored
SWEEP_EVERY_S: Final = 3.0
RETRY_EVERY_S: Final = 1.0  #: while the store cannot be written (disk full)
MAX_TOLD: Final = 200  #: different failures that are logged


class Deriving(Protocol):
    """What the writer needs of the pipeline."""

    failures: int  #: requests that could not be derived; the pipeline tells and stores them itself

    def add(self, batch: Batch) -> Added:
        """Store a batch."""

    @property
    def dirty(self) -> int:
        """Sources that changed and are not derived yet."""

    def derive(self, now_ns: int | None, *, most_sources: int | None = None) -> int:
        """Derive requests that changed, of at most about ``most_sources`` sources; returns how many."""

    def sweep(self, now_ns: int) -> int:
        """Close what has been quiet for too long; returns how many."""


class Forgetting(Protocol):
    """What the writer needs of the write-ahead log."""

    def mark_committed(self, positions: Sequence[int]) -> None:
        """These positions need no replay any more."""


@dataclass(slots=True)
class Written:
    """Counters of the writer since the start of the process."""

    spans: int = 0
    records: int = 0
    logs: int = 0
    points: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    transactions: int = 0
    derived: int = 0
    closed: int = 0
    store_failures: int = 0  #: transactions that failed and were tried again
    lost: int = 0  #: things (rejections too) that the store refuses for good
    derive_failures: int = 0  #: whole steps that failed; single requests are counted by the pipeline
    add_seconds: float = 0.0
    derive_seconds: float = 0.0
    committed_lag_ns: int = 0  #: of the last transaction: oldest receive to commit


class Writer:
    """Runs until the inbox is closed and empty."""

    def __init__(
        self, inbox: Inbox, pipeline: Deriving, log_of_arrivals: Forgetting, now_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.counts = Written()
        self.fatal: Exception | None = None  #: why the thread ended by itself
        self._inbox = inbox
        self._pipeline = pipeline
        self._log = log_of_arrivals
        self._now_ns = now_ns
        self._stop = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="pdtrace-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def drain(self, timeout_s: float) -> bool:
        """Close the inbox, write what is in it, derive, and end; False if that took longer than ``timeout_s``."""
        self._inbox.close()
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def write_waiting(self) -> int:
        """Write one transaction out of what waits; returns how many arrivals it held."""
        arrivals = self._inbox.take(max_spans=MAX_SPANS, wait_s=MAX_WAIT_S)
        if arrivals:
            self._write(arrivals)
        return len(arrivals)

    @property
    def failed_requests(self) -> int:
        """Requests that could not be derived, each time they were tried."""
        return self._pipeline.failures

    def derive(self, *, to_the_end: bool = False) -> None:
        """Derive what changed. A failure is counted, logged once per text and kept for `pdtrace doctor`."""
        started = time.perf_counter()
        most = None if to_the_end else DERIVE_SOURCES
        try:
            self.counts.derived += self._pipeline.derive(self._now_ns(), most_sources=most)
        except Exception as problem:  # noqa: BLE001 - whatever it is, ingest goes on
            self._derive_failed("derive", problem)
        self.counts.derive_seconds += time.perf_counter() - started

    def sweep(self) -> None:
        """Close requests that have been quiet for too long; failures as in ``derive``."""
        try:
            self.counts.closed += self._pipeline.sweep(self._now_ns())
        except Exception as problem:  # noqa: BLE001 - as above
            self._derive_failed("sweep", problem)

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as problem:  # noqa: BLE001 - the service looks at `fatal` and ends; the log replays the rest
            self.fatal = problem
            log.critical("the writer ended: %s", _what(problem))

    def _loop(self) -> None:
        next_derive = time.monotonic() + DERIVE_EVERY_S
        next_sweep = time.monotonic() + SWEEP_EVERY_S
        while True:
            wrote = self.write_waiting()
            if not wrote and self._stop.is_set():
                break
            now = time.monotonic()
            if now >= next_derive:
                self.derive()
                next_derive = time.monotonic() + (0.0 if self._pipeline.dirty else DERIVE_EVERY_S)
            if now >= next_sweep:
                self.sweep()
                next_sweep = time.monotonic() + SWEEP_EVERY_S
        self.derive(to_the_end=True)

    def _write(self, arrivals: Sequence[Arrival]) -> None:
        started = time.perf_counter()
        if self._stored(_merged([arrival.batch for arrival in arrivals])):
            self._log.mark_committed([arrival.position for arrival in arrivals])
        else:
            log.error("stopping with %d batches unwritten; the next start replays them", len(arrivals))
        self._inbox.done(arrivals)
        self.counts.add_seconds += time.perf_counter() - started
        self.counts.committed_lag_ns = self._now_ns() - min(arrival.received_ns for arrival in arrivals)

    def _stored(self, batch: Batch) -> bool:
        """Store ``batch``; False only if the store cannot be written and the service is stopping.

        While the disk is full it waits. If something in the batch makes the transaction fail, its halves are tried, and
        the one thing that fails alone is given up: kept for ever it would stop everything behind it.
        """
        while True:
            try:
                self._add(batch)
                return True
            except Exception as problem:
                if is_fatal(problem):
                    raise
                self.counts.store_failures += 1
                if not is_temporary(problem):
                    parts = _halves(batch)
                    if parts:
                        return all(self._stored(part) for part in parts)
                    self._give_up(batch, problem)
                    return True
                self._tell(f"the store cannot be written, trying again: {_what(problem)}")
                if self._stop.wait(RETRY_EVERY_S):
                    return False

    def _give_up(self, batch: Batch, problem: Exception) -> None:
        what = _KINDS[_things(batch)[0][0]]
        self.counts.lost += 1
        self._tell(f"the store refused a {what}, which is lost: {_what(problem)}")
        if what != "rejection":
            self._reject(Rejection(what, "store", f"the store refused it ({_what(problem)}); please report it"))

    def _derive_failed(self, step: str, problem: Exception) -> None:
        if is_fatal(problem):
            raise problem
        self.counts.derive_failures += 1
        self._tell(f"{step} failed: {_what(problem)}")
        self._reject(Rejection("request", step, f"{step} failed: {_what(problem)}"))

    def _reject(self, rejection: Rejection) -> None:
        try:
            self._pipeline.add(Batch(rejections=[rejection]))
        except Exception as problem:  # noqa: BLE001 - it was logged and counted; nothing more can be done
            self._tell(f"a rejection could not be stored: {_what(problem)}")

    def _tell(self, text: str) -> None:
        """Log each text once: a failure that repeats every half second would fill the disk."""
        if text not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(text)
            log.error(text, exc_info=log.isEnabledFor(logging.DEBUG))

    def _add(self, batch: Batch) -> None:
        # A copy: the pipeline adds the records it finds in logs, and must find none of them there when it tries again.
        added = self._pipeline.add(_merged([batch]))
        counts = self.counts
        counts.transactions += 1
        counts.spans += len(added.spans)
        counts.records += len(added.records)
        counts.duplicates += added.duplicates
        counts.conflicts += added.conflicts
        counts.logs += len(batch.logs)
        counts.points += len(batch.points)
        counts.rejected += sum(rejection.count for rejection in batch.rejections)


def is_temporary(problem: Exception) -> bool:
    """Whether the same write may succeed later: the disk is full, memory is short."""
    return isinstance(_cause(problem), OSError | MemoryError | duckdb.IOException | duckdb.OutOfMemoryException)


def is_fatal(problem: Exception) -> bool:
    """Whether the database has shut itself down; only a new process can open it again."""
    return isinstance(_cause(problem), duckdb.FatalException | duckdb.InternalException | duckdb.ConnectionException)


def _cause(problem: Exception) -> BaseException:
    """What the store's own sentence (StoreError) was made of."""
    return problem.__cause__ if isinstance(problem, StoreError) and problem.__cause__ else problem


def _merged(batches: Sequence[Batch]) -> Batch:
    merged = Batch()
    for batch in batches:
        merged.spans += batch.spans
        merged.records += batch.records
        merged.logs += batch.logs
        merged.points += batch.points
        merged.rejections += batch.rejections
    return merged


#: Field of Batch -> what one item of it is called in a Rejection.
_KINDS: Final = {"spans": "span", "records": "record", "logs": "log", "points": "point", "rejections": "rejection"}


def _things(batch: Batch) -> list[tuple[str, Any]]:
    return [(kind, item) for kind in _KINDS for item in getattr(batch, kind)]


def _halves(batch: Batch) -> list[Batch]:
    """The batch in two parts; [] if it holds one thing."""
    things = _things(batch)
    if len(things) <= 1:
        return []
    halves = [Batch(), Batch()]
    for position, (kind, item) in enumerate(things):
        getattr(halves[2 * position // len(things)], kind).append(item)
    return halves


def _what(problem: Exception) -> str:
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
