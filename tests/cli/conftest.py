"""A small store as a file, and the same store behind a running query API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdtrace.api.app import Backend, make_app
from pdtrace.reader.local import LocalReader
from pdtrace.service.ports import HttpServer, listen, port_of
from pdtrace.store.duckdb import DuckDBStore
from tests.api.small_store import fill


@pytest.fixture(scope="session")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "small.duckdb"
    store = DuckDBStore(path)
    fill(store)
    store.close()
    return path


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    store = DuckDBStore(":memory:")
    fill(store)
    listener = listen("127.0.0.1", 0, "the test's API")
    server = HttpServer(make_app(Backend(reader=LocalReader(store))), listener, "test-api")
    server.start()
    yield f"http://127.0.0.1:{port_of(listener)}"
    server.stop()
    store.close()


@pytest.fixture(params=["db", "url"])
def source(request: pytest.FixtureRequest) -> list[str]:
    """The options that name the small store: once as a file, once as a service."""
    return [f"--{request.param}", str(request.getfixturevalue(request.param))]
