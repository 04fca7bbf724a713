"""Clocks of a simulated cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pdtrace.simulate.cluster import base_cluster
from pdtrace.simulate.story import ClusterFacts, HostFacts, WorkerFacts

CLOCKS = ClusterFacts(
    {"right": HostFacts(), "ahead": HostFacts(offset_ns=250), "drifting": HostFacts(-40, 1_000.0, 5_000_000)}, {}
)


def test_stamps_by_hand() -> None:
    """1,000 ppm are one ns in a thousand, from the epoch on."""
    assert CLOCKS.stamp("right", 7_000_000) == 7_000_000
    assert CLOCKS.stamp("ahead", 7_000_000) == 7_000_250
    assert CLOCKS.stamp("drifting", 4_000_000) == 3_999_960
    assert CLOCKS.stamp("drifting", 5_000_000) == 4_999_960
    assert CLOCKS.stamp("drifting", 7_000_000) == 7_000_000 - 40 + 2_000


@given(
    st.integers(-(10**9), 10**9),
    st.floats(-5_000, 5_000),
    st.integers(0, 10**12),
    st.lists(st.integers(0, 10**13), min_size=2),
)
def test_a_clock_never_steps_back(offset_ns: int, drift_ppm: float, epoch_ns: int, at: list[int]) -> None:
    facts = ClusterFacts({"host": HostFacts(offset_ns, drift_ppm, epoch_ns)}, {})
    stamps = [facts.stamp("host", ns) for ns in sorted(at)]
    assert stamps == sorted(stamps)


def test_facts_of_a_cluster() -> None:
    facts = base_cluster(clocks=(("node-1", HostFacts(5, 2.0, 100)),)).facts(1_000)
    assert facts.workers["router-0"] == WorkerFacts("router", "edge-0")
    assert facts.workers["p2"] == WorkerFacts("prefill", "node-1", "prefill", 2, "H100-SXM", 2)
    assert facts.hosts["node-1"] == HostFacts(5, 2.0, 1_100)
    assert set(facts.hosts) == {"edge-0", "node-0", "node-1", "node-2"}
