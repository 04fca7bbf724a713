"""The same cluster in another unit of time: everything that lasts lasts a factor longer.

Owns which fields are times and speeds, told by their names' units. A scenario at ten times its rate saturates a cluster
that it was not made for; in a cluster ten times as fast it stays itself.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_TIMES: Final = ("_ns", "_ns_per_token", "_ns_per_sequence")


def slowed(thing: _T, factor: float) -> _T:
    """A copy of a frozen dataclass with every time multiplied and every speed divided by ``factor``.

    Times are fields named ``*_ns``, ``*_ns_per_token``, ``*_ns_per_sequence`` (whole, at least 1 unless 0) and ``*_s``;
    speeds are ``*gb_per_s`` and ``rate_per_s``. Dataclasses inside, also in tuples, are slowed with it; clocks are not
    (HostFacts tells what a clock shows, not how long anything takes).
    """
    if factor == 1.0:
        return thing
    assert is_dataclass(thing)
    changed = {field.name: _slowed_field(field.name, getattr(thing, field.name), factor) for field in fields(thing)}
    return replace(thing, **changed)  # type: ignore[type-var]


def _slowed_field(name: str, value: Any, factor: float) -> Any:
    if name == "clocks":
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return slowed(value, factor)
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return tuple(slowed(each, factor) for each in value)
    if name.endswith(("gb_per_s", "rate_per_s")):
        return value / factor
    if name.endswith(_TIMES):
        return max(1, round(value * factor)) if value else value
    if name.endswith("_s"):
        return value * factor
    return value
