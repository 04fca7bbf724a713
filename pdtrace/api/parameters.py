"""Query parameters of the API: what each endpoint takes, and how text becomes a checked value.

Owns names, types, allowed values and the sentences of refusals. Does not ask the reader anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pdtrace.outcomes import OUTCOMES
from pdtrace.reader.contract import BadQuestion, Filters

INT64_MAX: Final = 2**63 - 1

#: Modes of a request (definitions, section 1).
MODES: Final = ("aggregated", "sequential", "overlapped", "internal", "prefill_on_decode", "unknown")


class BadParameter(BadQuestion):
    """A parameter or value that the question does not take; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter."""

    name: str
    kind: Literal["integer", "string", "boolean", "list"]
    text: str  #: meaning and unit, for the OpenAPI document
    choices: tuple[str, ...] = ()  #: allowed values; () = any
    default: Any = None
    minimum: int = 0  #: of integers
    maximum: int = INT64_MAX  #: of integers


FILTERS: Final[tuple[Parameter, ...]] = (
    Parameter("since", "integer", "Window start at or after this Unix time, ns."),
    Parameter("until", "integer", "Window start before this Unix time, ns."),
    Parameter("run", "string", "Run label."),
    Parameter("model", "string", "Model name."),
    Parameter("mode", "string", "How P and D were used.", choices=MODES),
    Parameter("outcome", "string", "Outcome of the ledger.", choices=tuple(OUTCOMES)),
    Parameter("prefill_worker", "string", "Worker that computed the prompt."),
    Parameter("decode_worker", "string", "Worker that produced the answer."),
)


def parse(known: Iterable[Parameter], given: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Checked values of all ``known`` parameters, defaults filled in, from the query string's pairs.

    Raises:
        BadParameter: An unknown or repeated name, or a value of the wrong kind or outside its bounds.
    """
    by_name = {parameter.name: parameter for parameter in known}
    values: dict[str, Any] = {name: parameter.default for name, parameter in by_name.items()}
    seen: set[str] = set()
    for name, text in given:
        if name not in by_name:
            takes = ", ".join(by_name) or "no parameters"
            raise BadParameter(f"unknown parameter {name!r}; this path takes {takes}")
        if name in seen:
            raise BadParameter(f"{name} is given twice; give it once")
        seen.add(name)
        values[name] = _value(by_name[name], text)
    return values


def filters(values: Mapping[str, Any], limit: int | None = None) -> Filters:
    """The filter bar out of parsed values."""
    return Filters(
        since_ns=values["since"],
        until_ns=values["until"],
        run=values["run"],
        model=values["model"],
        mode=values["mode"],
        outcome=values["outcome"],
        prefill_worker=values["prefill_worker"],
        decode_worker=values["decode_worker"],
        limit=limit,
    )


def _value(parameter: Parameter, text: str) -> Any:
    name = parameter.name
    if parameter.kind == "integer":
        if not re.fullmatch(r"-?[0-9]{1,19}", text):
            raise BadParameter(f"{name}: {text[:40]!r} is not an integer; give {parameter.text}")
        number = int(text)
        if not parameter.minimum <= number <= parameter.maximum:
            raise BadParameter(f"{name}: {number} is out of range; {parameter.minimum} to {parameter.maximum}")
        return number
    if parameter.kind == "boolean":
        if text not in ("true", "false"):
            raise BadParameter(f"{name}: {text[:40]!r} is no truth value; true or false")
        return text == "true"
    if parameter.kind == "list":
        return tuple(part for part in text.split(",") if part)
    if parameter.choices and text not in parameter.choices:
        raise BadParameter(f"{name}: {text[:40]!r} is not known; one of {', '.join(parameter.choices)}")
    return text
