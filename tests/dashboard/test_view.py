"""The filter bar as data: URL to view and back, view to filters."""

from __future__ import annotations

import pytest

from pdtrace_dashboard.view import View, from_url, to_url

S = 1_000_000_000
EVENT_NS = 1_774_744_200 * S


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(
            range="5m", model="m", run="r", mode="overlapped", prefill_worker="p-0", decode_worker="d-0", outcome="ok"
        ),
        View(range="absolute", since_ns=EVENT_NS, until_ns=EVENT_NS + 3600 * S, zone="Europe/Berlin"),
        View(range="run", run="load-a"),
    ],
)
def test_the_url_carries_the_whole_view(view):
    assert from_url(to_url(view)) == (view, [])


def test_relative_ranges_end_now_and_start_on_a_second():
    filters = View(range="5m", model="m").filters(EVENT_NS + 123)
    assert (filters.since_ns, filters.until_ns, filters.model) == (EVENT_NS - 300 * S, None, "m")


def test_a_run_has_no_time_bounds():
    filters = View(range="run", run="load-a").filters(EVENT_NS)
    assert (filters.since_ns, filters.until_ns, filters.run) == (None, None, "load-a")


def test_a_typed_local_range_selects_what_the_same_utc_range_selects():
    local, _ = from_url(
        {"range": "absolute", "from": "2026-03-29 01:30", "to": "2026-03-29 03:30", "zone": "Europe/Berlin"}
    )
    utc, _ = from_url({"range": "absolute", "from": "2026-03-29T00:30:00Z", "to": "2026-03-29T01:30:00Z"})
    assert local.filters(0) == utc.filters(0)
    assert local.filters(0).until_ns - local.filters(0).since_ns == 3600 * S  # not two hours: one was skipped


def test_what_the_url_says_wrong_is_told_and_not_used():
    view, problems = from_url({"range": "2h", "zone": "Mars", "model": "m"})
    assert view == View(model="m")
    assert len(problems) == 2
    assert "range=2h" in problems[1]
    view, problems = from_url({"range": "absolute", "from": "soon"})
    assert view.since_ns is None
    assert "from in the URL" in problems[0]


def test_words_for_the_range():
    assert View().range_text == "last 15 min"
    assert View(range="absolute", since_ns=EVENT_NS).range_text == "from 2026-03-29T00:30:00Z to any time"
