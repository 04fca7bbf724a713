"""The request that the running code works for: set by the middleware, read by the pieces further in.

Owns one context variable. asyncio tasks and `anyio.to_thread` inherit it; a bare thread does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final

from pdtrace.instrumentation import NO_RECORD, Record


class Current:
    """One request in progress: its record, and what several calls made for it share."""

    __slots__ = ("failed_legs", "failed_role", "reads_tokens", "record", "request_id")

    def __init__(self, record: Record, request_id: str = "", *, reads_tokens: bool = False) -> None:
        self.record = record
        self.request_id = request_id
        self.reads_tokens = reads_tokens  #: somebody nearer to the user stamps the tokens
        self.failed_legs: dict[str, int] = {}  #: role -> calls to a worker of that role that failed
        self.failed_role = ""  #: role of the last of them


_NOTHING: Final = Current(NO_RECORD)
_current: ContextVar[Current] = ContextVar("pdtrace_current", default=_NOTHING)


def current() -> Current:
    """The request in progress; one without a record outside of any."""
    return _current.get()


def current_record() -> Record:
    """The record of the request in progress, to stamp stages on; outside of any request one that keeps nothing."""
    return _current.get().record


def enter(request: Current) -> Token[Current]:
    """Make ``request`` the current one; give the token to :func:`leave`."""
    return _current.set(request)


def leave(token: Token[Current]) -> None:
    """Put back what was current before :func:`enter`."""
    try:
        _current.reset(token)
    except ValueError:  # left in another task than entered, as async generators may be: nothing to put back there
        pass


@contextmanager
def use_record(record: Record, request_id: str = "", *, reads_tokens: bool = False) -> Iterator[Record]:
    """Make ``record`` the current one inside the block; ``request_id`` is what calls further down carry, "" = its own."""
    token = enter(Current(record, request_id or record.request_id, reads_tokens=reads_tokens))
    try:
        yield record
    finally:
        leave(token)
