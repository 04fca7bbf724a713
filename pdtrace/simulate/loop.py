"""True time and what happens next.

Owns the order of events: by time, then as they were planned. Knows nothing of requests or workers.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Protocol


class Subject(Protocol):
    """Whom an event is about. Raising its generation takes back everything that was planned for it."""

    generation: int


class Loop:
    """The event queue of one simulation."""

    def __init__(self, start_ns: int) -> None:
        self.now_ns = start_ns
        self._planned: list[tuple[int, int, Callable[[Any, int], None], Any, int]] = []
        self._order = 0

    def at(self, time_ns: int, call: Callable[[Any, int], None], subject: Subject) -> None:
        """Plan ``call(subject, time_ns)`` unless the subject's generation changes before.

        Raises:
            ValueError: The time is past: an effect before its cause is a fault of the model.
        """
        if time_ns < self.now_ns:
            raise ValueError(f"planned for {time_ns} ns, but it is {self.now_ns} ns already")
        self._order += 1
        heappush(self._planned, (time_ns, self._order, call, subject, subject.generation))

    def step(self) -> bool:
        """Let the next event happen; False when nothing is planned."""
        planned = self._planned
        while planned:
            time_ns, _, call, subject, generation = heappop(planned)
            if subject.generation == generation:
                self.now_ns = time_ns
                call(subject, time_ns)
                return True
        return False

    def next_ns(self) -> int | None:
        """Time of the next planned event, one that was taken back included; None when nothing is planned."""
        return self._planned[0][0] if self._planned else None
