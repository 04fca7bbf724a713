"""A fake reader behind every page test, and caches emptied between tests."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from pdtrace.reader.http import ServiceProblem
from pdtrace_dashboard import source
from tests.dashboard import fake_reader

APP = Path(source.__file__).with_name("app.py")


class Down:
    """A reader whose service is not there."""

    def __getattr__(self, name):
        """Every question fails with the HTTP reader's own sentence."""
        raise ServiceProblem("no pdtrace service answers at http://127.0.0.1:4320 (connection refused)")


@pytest.fixture
def behind(monkeypatch):
    """Put a reader behind the pages."""

    def put(reader):
        monkeypatch.setattr(source, "connect", lambda address: reader)
        st.cache_data.clear()
        st.cache_resource.clear()
        return reader

    yield put
    st.cache_data.clear()
    st.cache_resource.clear()


@pytest.fixture
def traffic(behind):
    """400 requests in the last five minutes."""
    return behind(fake_reader.traffic(time.time_ns()))


@pytest.fixture
def down():
    """A reader that cannot reach its service."""
    return Down()


@pytest.fixture
def open_page():
    """Run the app on a page with query parameters; returns the AppTest."""

    def open_(page: str, **query: str) -> AppTest:
        at = AppTest.from_file(str(APP), default_timeout=60)
        for key, value in query.items():
            at.query_params[key] = value
        at.run()
        if page != "live":
            at.switch_page(f"screens/{page}.py")
            for key, value in query.items():
                at.query_params[key] = value
            at.run()
        assert not at.exception, at.exception
        return at

    return open_
