"""One request as one process sees it: stamps now, spans later.

Owns the hot path. A call here reads the clock and extends a list, nothing else: ids, Unix times, checks and bytes are
made by the drainer (encode.py). Calls may come from several threads; each extends the list once, so none is lost or
torn, and they take effect in that order.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Protocol

from pdtrace.instrumentation.clock import Clock, SystemClock
from pdtrace.instrumentation.context import Context, render

# What happened, in the order it was said: a code, a stage and what the code needs, one after the other in one flat list.
# A tuple for each would be one more object that the host's cycle collector has to walk.
NEXT: Final = 0  #: stage, at_ns
BEGIN: Final = 1  #: stage, at_ns
END: Final = 2  #: stage, at_ns
WHOLE: Final = 3  #: stage, start_ns, end_ns, attributes, attempt, failed
SET: Final = 4  #: stage, name, value
FAIL: Final = 5  #: stage, text

#: Not the program's own generator: seeding that one must not make ids repeat, nor may ids disturb it.
_random = random.Random()  # noqa: S311 - ids, not secrets


_making = threading.Lock()
_NEVER_ZERO: Final = 1 << 64 | 1  #: a bit of the trace id and one of the span id behind it


def seed_ids(seed: str) -> None:
    """Draw the same ids each time, for simulated telemetry that must repeat."""
    _random.seed(seed)


def reseed() -> None:
    """After a fork: a child must not draw the ids its parent draws, nor wait for a lock that stayed with it."""
    global _making  # noqa: PLW0603 - the old one may be held by a thread that is not here
    _making = threading.Lock()
    _random.seed()


def random_64_bits() -> int:
    """What sampling decides by where no trace id was given: as many bits as OpenTelemetry's sampler looks at."""
    return _random.getrandbits(64)


def new_id(size: int, always_set: int = 1) -> bytes:
    """Random bytes with these bits set, so that an id is never all zero."""
    return (_random.getrandbits(8 * size) | always_set).to_bytes(size, "big")


class Keeper(Protocol):
    """What takes a record when it is finished: the ring of the recorder that began it."""

    @property
    def clock(self) -> Clock:
        """What stamps are read from."""

    @property
    def submit(self) -> Callable[[Record], None]:
        """Takes a finished record."""

    @property
    def begun(self) -> Iterator[int]:
        """Counts records; one step each."""

    def late(self) -> None:
        """Something was said of a record that was finished already."""


class Stamps(Protocol):
    """(stamp, tokens) of each chunk: a list, or the compact one of tokens.py."""

    def append(self, stamp: tuple[int, int], /) -> None:
        """One more chunk."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Chunks as they were said."""


class Record:
    """What is known of one request here. Made by ``Recorder.begin``; all stamps are of the recorder's clock."""

    __slots__ = (
        "_keeper", "_now", "_span_id", "_trace_id", "attempt", "attributes", "edge", "end_ns", "error", "events",
        "first_ns", "offset_ns", "outcome", "parent", "request_id", "said", "start_ns", "token_stamps",
    )  # fmt: skip

    recording = True

    def __init__(
        self,
        keeper: Keeper,
        now: Callable[[], int],
        offset_ns: int | None,
        request_id: str,
        parent: Context | None,
        edge: bool,
        attempt: int,
        start_ns: int,
    ) -> None:
        self._keeper = keeper
        self._now = now
        self.offset_ns = offset_ns  #: Unix time minus a stamp; None: ask the clock for each
        self.request_id = request_id
        self.parent = parent
        self.edge = edge
        self.attempt = attempt
        self.start_ns = start_ns
        self.events: list[Any] = []
        self.said: int | None = None  #: how many of the events came before the finish
        self.attributes: dict[str, Any] | None = None
        self.token_stamps: Stamps | None = None
        self.first_ns: int | None = None
        self._trace_id: bytes | None = None
        self._span_id: bytes | None = None

    @property
    def finished(self) -> bool:
        """Whether it was handed in: what is said afterwards is left out and counted."""
        return self.said is not None

    @property
    def clock(self) -> Clock:
        """What stamps are read from."""
        return self._keeper.clock

    # ------------------------------------------------------------------------------------------------- the hot path

    def next(self, stage: str, at_ns: int | None = None) -> None:
        """End the running stage and begin this one, with one stamp."""
        self.events += (NEXT, stage, self._now() if at_ns is None else at_ns)

    def begin(self, stage: str, at_ns: int | None = None) -> None:
        """Begin a stage beside those that run."""
        self.events += (BEGIN, stage, self._now() if at_ns is None else at_ns)

    def end(self, stage: str, at_ns: int | None = None) -> None:
        """End the stage, the latest begun first."""
        self.events += (END, stage, self._now() if at_ns is None else at_ns)

    def tokens(self, count: int = 1, at_ns: int | None = None) -> None:
        """``count`` user-visible tokens left in one chunk."""
        stamp = (self._now() if at_ns is None else at_ns, count)
        if self.said is not None:
            self._keeper.late()
        elif self.token_stamps is None:
            self.token_stamps = [stamp]
        else:
            self.token_stamps.append(stamp)

    def finish(self, outcome: str = "", error: str = "", at_ns: int | None = None) -> None:
        """Hand the record in. What still runs ends now. A second finish does nothing.

        Args:
            outcome: One of the ledger's outcomes (ok, cancelled, rejected, ...); "" = let pdtrace derive it.
            error: What went wrong, in words.
        """
        if self.said is not None:
            return
        self.end_ns = self._now() if at_ns is None else at_ns
        self.outcome = outcome
        self.error = error
        self.said = len(self.events)
        self._keeper.submit(self)

    # ------------------------------------------------------------------------------------------------ what goes with it

    @contextmanager
    def stage(self, stage: str) -> Iterator[None]:
        """A stage as long as the block; an exception passes through and marks it failed."""
        self.begin(stage)
        try:
            yield
        except BaseException as problem:
            self.fail(stage, in_words(problem))
            raise
        finally:
            self.end(stage)

    def add(
        self,
        stage: str,
        start_ns: int,
        end_ns: int,
        attributes: Mapping[str, Any] | None = None,
        *,
        attempt: int | None = None,
        failed: str = "",
    ) -> None:
        """A whole interval after the fact: a rank of a transfer, a chunk, a simulated stage."""
        if self.said is not None:
            self._keeper.late()
        else:
            self.events += (WHOLE, stage, start_ns, end_ns, attributes, attempt, failed)

    def set(self, name: str, value: Any) -> None:
        """An attribute of the request. Only an edge record has a span to carry it."""
        if self.said is not None:
            self._keeper.late()
        elif self.attributes is None:
            self.attributes = {name: value}
        else:
            self.attributes[name] = value

    def set_stage(self, stage: str, name: str, value: Any) -> None:
        """An attribute of the latest span of a stage."""
        if self.said is not None:
            self._keeper.late()
        else:
            self.events += (SET, stage, name, value)

    def fail(self, stage: str, text: str) -> None:
        """The latest span of a stage failed."""
        if self.said is not None:
            self._keeper.late()
        else:
            self.events += (FAIL, stage, text)

    def first_token(self, at_ns: int | None = None) -> None:
        """The first user-visible token, where chunks are not stamped one by one; the first call counts."""
        if self.said is not None:
            self._keeper.late()
        elif self.first_ns is None:
            self.first_ns = self._now() if at_ns is None else at_ns

    def beside(self) -> Record:
        """Another record of the same request here, for what outlasts this one; it has its own ``finish``."""
        next(self._keeper.begun)
        trace_id, span_id = self.trace_id_bytes, self.span_id_bytes
        parent = Context(trace_id, span_id, sampled=True) if self.edge else self.parent
        other = Record(
            self._keeper, self._now, self.offset_ns, self.request_id, parent, False, self.attempt, self.start_ns
        )
        other.adopt(trace_id, span_id)
        return other

    # -------------------------------------------------------------------------------------------------------- identity

    @property
    def trace_id_bytes(self) -> bytes:
        """Caller's trace, else a new one; made when first asked for."""
        return self._trace_id or self._ids()[0]

    @property
    def span_id_bytes(self) -> bytes:
        """The request's span (edge), or what calls further down hang under (others: the caller's span)."""
        return self._span_id or self._ids()[1]

    def _ids(self) -> tuple[bytes, bytes]:
        """Make both ids, once: P and D may be called from two threads."""
        with _making:
            if self._trace_id is None or self._span_id is None:
                parent = self.parent
                if parent is None:
                    both = new_id(24, _NEVER_ZERO)
                    self._span_id, self._trace_id = both[16:], both[:16]
                else:
                    self._span_id = new_id(8) if self.edge else parent.span_id
                    self._trace_id = parent.trace_id
            return self._trace_id, self._span_id

    def adopt(self, trace_id: bytes, span_id: bytes) -> None:
        """Take the ids of a span that stands for this record, before anybody asked for its own."""
        self._trace_id, self._span_id = trace_id, span_id

    @property
    def trace_id(self) -> str:
        """32 hex digits."""
        return self.trace_id_bytes.hex()

    @property
    def span_id(self) -> str:
        """16 hex digits."""
        return self.span_id_bytes.hex()

    @property
    def traceparent(self) -> str:
        """W3C context for calls further down."""
        return render(self.trace_id_bytes, self.span_id_bytes, sampled=True)


def in_words(problem: BaseException) -> str:
    """An exception in words. Its own text is made by code of the host's, which may fail too."""
    try:
        return f"{type(problem).__name__}: {problem}"
    except Exception:  # noqa: BLE001 - the exception that passes through must be the host's
        return type(problem).__name__


class Unrecorded(Record):
    """Stands for a request that is not recorded: takes every call, keeps nothing, passes the context on."""

    __slots__ = ("_traceparent",)

    recording = False

    def __init__(self, keeper: Keeper, traceparent: str) -> None:
        super().__init__(keeper, _no_time, 0, "", None, False, 0, 0)
        self.said = 0
        self._traceparent = traceparent

    def next(self, stage: str, at_ns: int | None = None) -> None:
        """Nothing."""

    def begin(self, stage: str, at_ns: int | None = None) -> None:
        """Nothing."""

    def end(self, stage: str, at_ns: int | None = None) -> None:
        """Nothing."""

    def tokens(self, count: int = 1, at_ns: int | None = None) -> None:
        """Nothing."""

    def add(self, stage: str, start_ns: int, end_ns: int, attributes: Any = None, **more: Any) -> None:
        """Nothing."""

    def set(self, name: str, value: Any) -> None:
        """Nothing."""

    def set_stage(self, stage: str, name: str, value: Any) -> None:
        """Nothing."""

    def fail(self, stage: str, text: str) -> None:
        """Nothing."""

    def first_token(self, at_ns: int | None = None) -> None:
        """Nothing."""

    def beside(self) -> Record:
        """Itself."""
        return self

    @property
    def traceparent(self) -> str:
        """What came in; "" if nothing did and recording is off."""
        return self._traceparent

    @property
    def trace_id(self) -> str:
        """Trace of the context that is passed on, or ""."""
        return self._traceparent[3:35]

    @property
    def span_id(self) -> str:
        """Span of the context that is passed on, or ""."""
        return self._traceparent[36:52]


def _no_time() -> int:
    return 0


class _Nobody:
    clock: Clock = SystemClock()
    begun: Iterator[int] = itertools.count()

    def submit(self, record: Record) -> None:
        pass

    def late(self) -> None:
        pass


#: What ``begin`` gives where nothing is recorded.
NO_RECORD: Final[Record] = Unrecorded(_Nobody(), "")
