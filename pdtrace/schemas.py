"""Where the data files under schemas/ are: package data when installed, the checkout otherwise.

Owns finding and reading them. Does not interpret them. (Editable installs skip force-included files, hence two places.)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path


class SchemaMissing(LookupError):
    """A data file that belongs to pdtrace is not there: the installation is incomplete."""


@cache
def schemas_root() -> Path:
    """The folder that holds the schemas.

    Raises:
        SchemaMissing: neither the installed package data nor a checkout is there.
    """
    package = Path(__file__).resolve().parent
    for root in (package / "_schemas", package.parent / "schemas"):
        if root.is_dir():
            return root
    raise SchemaMissing(f"pdtrace's schemas are neither in {package / '_schemas'} nor in a checkout; reinstall pdtrace")


def schema_files(folder: str, suffix: str) -> list[Path]:
    """Files of ``folder`` (relative to the root, "/" separated) that end in ``suffix``, by name."""
    path = schemas_root() / folder
    if not path.is_dir():
        raise SchemaMissing(f"{path} is missing; reinstall pdtrace")
    return sorted(p for p in path.iterdir() if p.name.endswith(suffix))


def schema_text(name: str) -> str:
    """Text of one file, e.g. ``sql/duckdb/0001_raw.sql``."""
    path = schemas_root() / name
    if not path.is_file():
        raise SchemaMissing(f"{path} is missing; reinstall pdtrace")
    return path.read_text(encoding="utf-8")
