"""Named queries: one question a .sql file, whose header says what it asks, takes and gives.

Owns finding and checking them. Does not run them (pdtrace.store).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent


class QueryError(LookupError):
    """No such query, or parameters that are not exactly the query's own."""


@dataclass(frozen=True, slots=True)
class Query:
    """One .sql file."""

    name: str
    sql: str
    parameters: frozenset[str]  #: names after ``$`` in the statement

    def check(self, parameters: Mapping[str, Any]) -> None:
        """Raise QueryError unless ``parameters`` names exactly the query's parameters."""
        missing = self.parameters - parameters.keys()
        unknown = parameters.keys() - self.parameters
        if missing or unknown:
            raise QueryError(
                f"query {self.name} takes {sorted(self.parameters)}; missing {sorted(missing)}, unknown {sorted(unknown)}"
            )


def names() -> list[str]:
    """Every query there is."""
    return sorted(path.stem for path in _FOLDER.glob("*.sql"))


@cache
def load(name: str) -> Query:
    """The query of that name."""
    if name not in names():
        raise QueryError(f"there is no query {name!r}; there are {', '.join(names())}")
    sql = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    statement = re.sub(r"--[^\n]*", "", sql)
    return Query(name, sql, frozenset(re.findall(r"\$([a-z][a-z0-9_]*)", statement)))
