"""What is asked: distributions, recordings, and streams that do not disturb each other."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from pdtrace.simulate.arrivals import (
    Arrival,
    Bursts,
    Lengths,
    Workload,
    arrivals,
    mean_rate_per_s,
    shared_beginnings,
)

SECOND = 1_000_000_000


def asked(workload: Workload, requests: int = 2_000, seed: int = 1, onset_ns: int = 0) -> list[Arrival]:
    return list(
        arrivals(workload, seed=seed, requests=requests, start_ns=1_000, onset_ns=1_000 + onset_ns, block_size=64)
    )


def test_poisson_at_the_asked_rate() -> None:
    """Mean gap 50 ms, and as much spread as mean: no clock behind it."""
    times = [a.time_ns for a in asked(Workload(rate_per_s=20.0), 4_000)]
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= 0
    assert statistics.mean(gaps) == pytest.approx(SECOND / 20, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(SECOND / 20, rel=0.08)


def test_bursts_come_after_the_onset_at_their_factor() -> None:
    """Five times the rate in the first second of every five: 1.8 times as many in all."""
    burst = Workload(rate_per_s=20.0, bursts=Bursts(every_ns=5 * SECOND, length_ns=SECOND, factor=5.0))
    times = [a.time_ns - 1_000 for a in asked(burst, 9_000, onset_ns=100 * SECOND)]
    before = [t for t in times if t < 100 * SECOND]
    inside = [t for t in times if 100 * SECOND <= t < 200 * SECOND and t % (5 * SECOND) < SECOND]
    outside = [t for t in times if 100 * SECOND <= t < 200 * SECOND and t % (5 * SECOND) >= SECOND]
    assert len(before) == pytest.approx(2_000, rel=0.1)
    assert len(inside) == pytest.approx(20 * 100, rel=0.1)
    assert len(outside) == pytest.approx(80 * 20, rel=0.1)


def test_a_step_multiplies_the_rate() -> None:
    times = [a.time_ns for a in asked(Workload(rate_per_s=10.0, rate_step=3.0), 3_000, onset_ns=50 * SECOND)]
    assert len([t for t in times if t < 50 * SECOND]) == pytest.approx(500, rel=0.15)
    assert len([t for t in times if 50 * SECOND <= t < 100 * SECOND]) == pytest.approx(1_500, rel=0.1)


def test_concerns_do_not_disturb_each_other() -> None:
    """Bursts move times and nothing else; long prompts lengthen some and move nothing."""
    plain = asked(Workload(rate_per_s=20.0))
    burst = asked(Workload(rate_per_s=20.0, bursts=Bursts()), onset_ns=20 * SECOND)
    assert [a.time_ns for a in plain] != [a.time_ns for a in burst]
    assert [replace(a, time_ns=0) for a in plain] == [replace(a, time_ns=0) for a in burst]
    long = asked(Workload(rate_per_s=20.0, long_share=0.1, long_tokens=30_000), onset_ns=20 * SECOND)
    assert [a.time_ns for a in plain] == [a.time_ns for a in long]
    longer = [a.number for a, b in zip(long, plain, strict=True) if a.input_tokens != b.input_tokens]
    late = [a for a in long if a.time_ns >= 20 * SECOND + 1_000]
    assert len(longer) == pytest.approx(len(late) / 10, abs=1)
    assert {long[number].input_tokens for number in longer} == {31_024}
    assert min(longer) >= late[0].number


def test_blocks_of_a_group_are_shared_and_the_rest_is_ones_own() -> None:
    workload = Workload(groups=3, group_tokens=256, own_tokens=Lengths(300, 0.5, 1, 2_000))
    beginnings = shared_beginnings(workload, 64)
    assert [len(blocks) for blocks in beginnings] == [4, 4, 4]
    seen: set[int] = set()
    for a in asked(workload, 300):
        assert len(a.blocks) == a.input_tokens // 64
        assert a.blocks[:4] in beginnings
        assert not seen & set(a.blocks[4:])
        seen |= set(a.blocks[4:])


def test_shares_of_clients() -> None:
    some = asked(Workload(cancel_share=0.2, invalid_share=0.1, patience_s=2.0), 4_000)
    patience = [a.patience_ns for a in some if a.patience_ns is not None]
    assert len(patience) == pytest.approx(800, rel=0.15)
    assert statistics.mean(patience) == pytest.approx(2 * SECOND, rel=0.15)
    assert sum(a.invalid for a in some) == pytest.approx(400, rel=0.2)
    assert statistics.mean(a.luck for a in some) == pytest.approx(0.5, abs=0.03)


def test_mooncake_rows_as_recorded() -> None:
    """First row: 6,758 tokens of 14 hashes at time 0; 8 of our blocks stand for one hash of 512 tokens."""
    rows = asked(Workload(file="mooncake", rate_per_s=0.0), 1_500)
    assert (rows[0].time_ns, rows[0].input_tokens, rows[0].output_tokens) == (1_000, 6_758, 500)
    assert len(rows[0].blocks) == 6_758 // 64
    assert rows[0].blocks[:8] == rows[1].blocks[:8]  # both begin with hash 0
    assert rows[0].blocks[8] != rows[1].blocks[8]
    # The recording has 1,000 rows in 330 s; the next round begins after it, with the same prompts.
    assert rows[999].time_ns - 1_000 == 330 * SECOND
    assert rows[1_000].time_ns > rows[999].time_ns
    assert rows[1_000].blocks[:100] == rows[0].blocks[:100]
    assert mean_rate_per_s(Workload(file="mooncake", rate_per_s=0.0)) == pytest.approx(999 / 330)


def test_azure_rows_as_recorded_and_at_another_rate() -> None:
    """18:15:46.6805900 with 374 and 44 tokens, then 4.314579 s later 396 and 109."""
    rows = asked(Workload(file="azure", rate_per_s=0.0), 2)
    assert [(a.time_ns - 1_000, a.input_tokens, a.output_tokens) for a in rows] == [
        (0, 374, 44),
        (4_314_579_000, 396, 109),
    ]
    faster = asked(Workload(file="azure", rate_per_s=50.0), 2_000)
    assert (faster[-1].time_ns - faster[0].time_ns) / SECOND == pytest.approx(2_000 / 50, rel=0.01)


def test_no_such_recording() -> None:
    with pytest.raises(ValueError, match="no recorded arrivals are called 'nobody'; there are mooncake, azure"):
        asked(Workload(file="nobody"), 1)
