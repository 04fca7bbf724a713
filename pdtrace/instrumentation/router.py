"""What a router decided and what it believed when it did: the attributes of a ``pdtrace.route`` span.

Owns one decision. Scores nothing and chooses nothing; the time a request waits for its decision is ``router_queue``,
a plain stamp of the record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from pdtrace.instrumentation.record import Record, in_words
from pdtrace.instrumentation.stages import ROUTE

log = logging.getLogger(__name__)

#: Which worker a decision is for.
For = Literal["prefill", "decode", "aggregated"]
#: What the score knows of the workers' caches.
Mode = Literal["events", "predicted", "load_only", "round_robin"]

_BY_CANDIDATE: Final[tuple[tuple[str, Callable[[Any], int | float]], ...]] = (
    ("overlap_tokens", int),
    ("cost", float),
    ("predicted_queue_ms", float),
    ("predicted_prefill_ms", float),
    ("predicted_transfer_ms", float),
)
_told: set[str] = set()


@dataclass(slots=True)
class Decision:
    """One routing decision. What is None or empty is not reported; the lists go by candidate, in the same order."""

    stage: For = "prefill"  #: what kind of worker was chosen
    mode: Mode | Literal[""] = ""  #: what the score knew
    candidates: Iterable[str] = ()  #: worker ids, as the workers' own ``service.instance.id``
    overlap_tokens: Iterable[int] | None = None  #: predicted prefix overlap
    cost: Iterable[float] | None = None  #: score, lower is better
    predicted_queue_ms: Iterable[float] | None = None
    predicted_prefill_ms: Iterable[float] | None = None
    predicted_transfer_ms: Iterable[float] | None = None
    block_size: int | None = None  #: tokens a KV block
    chosen: str = ""  #: worker id
    reason: str = ""  #: why, in words

    def attributes(self) -> dict[str, Any]:
        """Attributes of the route span, copied: the router may go on changing its lists.

        A list that is not one number a candidate is left out, with one line in the log. Never raises.
        """
        try:
            return self._attributes()
        except Exception as problem:  # noqa: BLE001 - code of the router's own types; routing must go on
            _tell("decision", in_words(problem))
            return {}

    def _attributes(self) -> dict[str, Any]:
        candidates = _values("candidates", self.candidates, str) or []
        found: dict[str, Any] = {
            "pdtrace.router.stage": self.stage,
            "pdtrace.router.mode": self.mode,
            "pdtrace.router.chosen": self.chosen,
            "pdtrace.router.candidates": candidates,
            "pdtrace.router.block_size": self.block_size,
            "pdtrace.router.reason": self.reason,
        }
        for name, kind in _BY_CANDIDATE:
            given = getattr(self, name)
            numbers = None if given is None else _values(name, given, kind)
            if numbers is not None and candidates and len(numbers) != len(candidates):
                _tell(name, f"{len(numbers)} of {name} for {len(candidates)} candidates")
            elif numbers:
                found[f"pdtrace.router.{name}"] = numbers
        return {name: value for name, value in found.items() if value not in ("", None, [])}


@contextmanager
def deciding(record: Record, stage: For = "prefill", *, attempt: int | None = None) -> Iterator[Decision]:
    """A route span as long as the block; fill in the decision inside. An exception passes through and marks it failed.

    Args:
        record: The request's record in this process.
        stage: What is chosen.
        attempt: Of the request, if it is not the record's own.
    """
    decision = Decision(stage)
    if not record.recording:
        yield decision
        return
    now = record.clock.now_ns
    start_ns = now()
    failed = ""
    try:
        yield decision
    except BaseException as problem:
        failed = in_words(problem)
        raise
    finally:
        record.add(ROUTE, start_ns, now(), decision.attributes(), attempt=attempt, failed=failed)


def decided(record: Record, decision: Decision, start_ns: int, end_ns: int, *, attempt: int | None = None) -> None:
    """Record a decision after the fact; the stamps are of the recorder's clock."""
    if record.recording:
        record.add(ROUTE, start_ns, end_ns, decision.attributes(), attempt=attempt)


def _values(name: str, values: Iterable[Any], kind: Callable[[Any], Any]) -> list[Any] | None:
    """Values as plain ones (they may be numpy's or torch's); None and a line in the log if they are not."""
    if isinstance(values, str):
        _tell(name, f"{name}: one text is no list")
        return None
    try:
        return [kind(value) for value in values]
    except Exception as problem:  # noqa: BLE001 - code of the router's own types
        _tell(name, f"{name}: {in_words(problem)}")
        return None


def _tell(name: str, text: str) -> None:
    if name not in _told:
        _told.add(name)
        log.warning("pdtrace: a routing decision leaves out what makes no sense: %s (said once)", text)
