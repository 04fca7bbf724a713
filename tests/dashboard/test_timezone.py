"""Typed times and zone-true axes across the change of 2026-03-29 in Europe/Berlin (case timezone-two-zones)."""

from __future__ import annotations

import re

import pytest

from pdtrace_dashboard import timezone
from pdtrace_dashboard.timezone import BadTime

BERLIN = "Europe/Berlin"
S = 1_000_000_000
EVENT_NS = 1_774_744_200 * S  # 2026-03-29T00:30:00Z
CHANGE_NS = 1_774_746_000 * S  # 2026-03-29T01:00:00Z: 02:00 becomes 03:00


def test_local_and_utc_name_the_same_instant():
    assert timezone.parse("2026-03-29T00:30:00Z", BERLIN) == EVENT_NS
    assert timezone.parse("2026-03-29 01:30", BERLIN) == EVENT_NS
    assert timezone.parse("2026-03-29 00:30", "UTC") == EVENT_NS
    assert timezone.parse("2026-03-29 03:30", BERLIN) == EVENT_NS + 3600 * S


def test_a_skipped_time_is_refused():
    with pytest.raises(BadTime, match="does not exist in Europe/Berlin"):
        timezone.parse("2026-03-29 02:30", BERLIN)


def test_a_time_that_happens_twice_needs_its_offset():
    with pytest.raises(BadTime, match=r"twice.*02:30\+02:00 or 2026-10-25 02:30\+01:00"):
        timezone.parse("2026-10-25 02:30", BERLIN)
    first, second = (timezone.parse(f"2026-10-25 02:30+0{hours}:00", BERLIN) for hours in (2, 1))
    assert second - first == 3600 * S


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "12:30", ""])
def test_what_is_no_time_is_refused_with_an_example(text):
    with pytest.raises(BadTime, match="type it as"):
        timezone.parse(text, "UTC")


def test_the_url_stamp_reads_back():
    assert timezone.stamp(EVENT_NS) == "2026-03-29T00:30:00Z"
    assert timezone.parse(timezone.stamp(EVENT_NS + 123_456_000), BERLIN) == EVENT_NS + 123_456_000


def test_transitions_find_the_change_to_the_second():
    pieces = timezone.transitions(BERLIN, EVENT_NS, EVENT_NS + 86_400 * S)
    assert pieces == [(EVENT_NS // S, 3600), (CHANGE_NS // S, 7200)]
    assert timezone.transitions("UTC", 0, 10**18) == [(0, 0)]


def test_a_short_range_over_the_change_is_seen():
    assert len(timezone.transitions(BERLIN, CHANGE_NS - S, CHANGE_NS + S)) == 2


def test_the_axis_prints_the_zone_and_both_offsets():
    assert timezone.title("UTC", 0, 1) == "time, UTC"
    assert timezone.title(BERLIN, EVENT_NS, EVENT_NS + 7200 * S) == "time, Europe/Berlin (UTC+01:00, then +02:00)"


def test_axis_labels_shift_by_the_offset_of_their_own_instant():
    expression = timezone.label_expression(BERLIN, EVENT_NS, EVENT_NS + 7200 * S)
    found = re.search(r"\(toNumber\(datum.value\) >= (\d+) \? (\d+) : (\d+)\)", expression)
    assert found
    assert [int(number) for number in found.groups()] == [CHANGE_NS // 1_000_000, 7_200_000, 3_600_000]


def test_the_spec_does_not_change_from_one_refresh_to_the_next():
    assert timezone.label_expression(BERLIN, EVENT_NS, EVENT_NS + S) == timezone.label_expression(
        BERLIN, EVENT_NS + 2 * S, EVENT_NS + 3 * S
    )


def test_zone_names():
    assert timezone.is_zone(BERLIN)
    assert not timezone.is_zone("Europe/Atlantis")
    assert not timezone.is_zone("../etc")
