"""A store with a known handful of requests, and the API over it in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from pdtrace.api.app import Backend, make_app
from pdtrace.reader.local import LocalReader
from pdtrace.store.duckdb import DuckDBStore
from tests.api.small_store import fill


@pytest.fixture
def store() -> Iterator[Any]:
    store = DuckDBStore(":memory:")
    fill(store)
    yield store
    store.close()


@pytest.fixture
def backend(store: Any) -> Backend:
    return Backend(reader=LocalReader(store), metrics=lambda: b"pdtrace_up 1\n")


@pytest.fixture
def api(backend: Backend) -> Iterator[TestClient]:
    with TestClient(make_app(backend), raise_server_exceptions=False) as client:
        yield client
