"""What a collector is: something that reads one kind of device and says what it saw.

Owns the contract and the isolation of failures. Knows no device and sends nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Attribute = str | int | float | bool
Kind = Literal["gauge", "counter", "level"]


class Measurement(NamedTuple):
    """One value at the time of collection.

    kind: ``gauge`` a level now; ``counter`` a cumulative total that only resets with its source;
          ``level`` an amount that may go up and down and may be added up over devices (OTel UpDownCounter).
    """

    name: str  #: OpenTelemetry metric name; `pdtrace.*` only where OpenTelemetry has none
    kind: Kind
    unit: str  #: UCUM, as OpenTelemetry spells it: By, J, W, Cel, 1, {packet}
    value: int | float
    attributes: dict[str, Attribute]


class Collector(Protocol):
    """Reads one kind of device."""

    name: str

    def collect(self) -> list[Measurement]:
        """What can be read now. No such hardware here is a normal answer: []. Raises what reading raises."""


@dataclass(slots=True)
class Collected:
    """One round over all collectors."""

    measurements: list[Measurement] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  #: collector -> what went wrong


def collect_all(collectors: Sequence[Collector]) -> Collected:
    """Run every collector; one that fails is reported and stops no other.

    Each round also says per collector whether it worked (``pdtrace.collector.up``) and how much it read, so that
    "no GPU here" (up, 0 measurements) and "the driver is broken" (not up) look different.
    """
    round_ = Collected()
    for collector in collectors:
        found: list[Measurement] = []
        try:
            found = collector.collect()
            up = 1
        except Exception as error:  # noqa: BLE001  a collector may raise anything; the others must run
            round_.failures[collector.name] = f"{type(error).__name__}: {error}"
            up = 0
        about: dict[str, Attribute] = {"pdtrace.collector": collector.name}
        round_.measurements += found
        round_.measurements.append(Measurement("pdtrace.collector.up", "gauge", "1", up, about))
        round_.measurements.append(
            Measurement("pdtrace.collector.measurements", "gauge", "{measurement}", len(found), about)
        )
    return round_
