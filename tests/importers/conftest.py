"""Fixtures for the tests of pdtrace/importers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference folder beside the checkout."""
    folder = Path(__file__).resolve().parents[3] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no reference material at {folder}: it lies beside the project's own checkout only")
    return folder
