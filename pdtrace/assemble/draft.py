"""A request in the making: what the dialects read, and what the normalisation steps add to it.

Owns the state the steps share and nothing else. Steps run in the order that request.py lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pdtrace.assemble.group import Group
from pdtrace.dialects.contract import Tree
from pdtrace.model import Activity, ClockOffset, Edge, Envelope, Leg, Reading


@dataclass(slots=True)
class Limits:
    """What a user may set."""

    max_clock_shift_ns: int = 1_000_000_000  #: a larger shift is proposed, not applied
    quiet_ns: int = 300_000_000_000  #: an open request that nothing was heard of for this long is ``unknown``


@dataclass(slots=True)
class Draft:
    """One request between grouping and charging."""

    group: Group
    tree: Tree
    reading: Reading
    limits: Limits
    now_ns: int | None  #: wall clock of a live service; None when files are read
    dialects: set[str] = field(default_factory=set)  #: of its spans
    edge: Edge | None = None  #: the edge whose clock and start define the window
    clock: str = ""  #: reference clock
    offsets: list[ClockOffset] = field(default_factory=list)
    first_attempt_only: bool = False  #: nothing in it belongs to any attempt but the first; False: unknown or not so
    mode: str = "unknown"
    t0_ns: int = 0
    t1_ns: int | None = None
    end_ns: int | None = None  #: end of the request, None while open
    last_ns: int = 0
    ttft_basis: str | None = None
    outcome: str = "unknown"
    outcome_text: str = ""
    wasted_ns: int = 0
    wasted_gpu_seconds: float | None = None

    @property
    def horizon_ns(self) -> int:
        """Where what is still open ends for now: the present of a live service, else the last stamp seen."""
        return max(self.now_ns, self.last_ns) if self.now_ns is not None else self.last_ns

    def worker_visits(self) -> list[Envelope | Leg]:
        """Envelopes and legs: everything that says a worker was called."""
        return [*self.reading.envelopes, *self.reading.legs]

    def of_role(self, *roles: str) -> list[Activity]:
        """Activities on workers of the given roles."""
        return [activity for activity in self.reading.activities if activity.role in roles]
