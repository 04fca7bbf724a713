"""Units, digits and the word for unknown."""

from __future__ import annotations

import pytest

from pdtrace_dashboard import format as fmt

MS = 1_000_000
S = 1_000 * MS


@pytest.mark.parametrize(
    ("length_ns", "text"),
    [
        (None, "unknown"),
        (0, "0 ms"),
        (1_234, "0.00123 ms"),
        (412 * MS, "412 ms"),
        (4_123 * MS, "4,120 ms"),
        (9_994 * MS, "9,990 ms"),
        (9_999 * MS, "10,000 ms"),
        (10 * S, "10 s"),
        (12_345 * MS, "12.3 s"),
        (900 * S, "900 s"),
        (-2 * MS, "-2 ms"),
    ],
)
def test_a_length_is_in_ms_below_ten_seconds_and_has_three_digits(length_ns, text):
    assert fmt.duration(length_ns) == text


def test_unknown_is_never_zero():
    assert fmt.duration(None) == fmt.size(None) == fmt.exact(None) == fmt.known(None) == fmt.known("") == "unknown"
    assert fmt.share(0, 0) == fmt.rate(3, 0) == fmt.clock_time(None, "UTC") == "unknown"
    assert fmt.known(0) == "0"


def test_the_proof_is_exact():
    assert fmt.exact(398_000_001) == "398,000,001 ns"


def test_an_axis_changes_to_seconds_at_ten():
    assert fmt.unit_for(9.99 * S).name == "ms"
    assert fmt.unit_for(10 * S).name == "s"
    assert fmt.unit_for(None).name == "ms"


def test_a_percentile_is_grey_below_twenty():
    assert fmt.few(19)
    assert fmt.few(None)
    assert not fmt.few(20)


def test_clock_time_is_zoned_and_prints_its_offset():
    at_ns = 1_774_744_200_123_000_000  # 2026-03-29T00:30:00.123Z
    assert fmt.clock_time(at_ns, "UTC") == "2026-03-29 00:30:00.123Z"
    assert fmt.clock_time(at_ns, "Europe/Berlin") == "2026-03-29 01:30:00.123+01:00"
    assert fmt.clock_time(at_ns + 3600 * S, "Europe/Berlin") == "2026-03-29 03:30:00.123+02:00"


def test_sizes_are_decimal():
    assert fmt.size(1_500_000_000) == "1.5 GB"
    assert fmt.size(12) == "12 bytes"
