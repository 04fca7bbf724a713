"""Network counters from a fixture tree, and the isolation of one collector's failure from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtrace_collectors.contract import Measurement, collect_all
from pdtrace_collectors.netdev import Netdev, parse

PROC = Path(__file__).parent / "fixtures" / "proc"


def by_key(found: list[Measurement]) -> dict[tuple[object, ...], float]:
    return {
        (m.attributes["network.interface.name"], m.name, m.attributes["network.io.direction"]): m.value for m in found
    }


def test_counters_of_every_interface() -> None:
    found = Netdev(PROC).collect()
    got = by_key(found)
    assert len(found) == 3 * 4 * 2
    assert got["lo", "system.network.io", "receive"] == 73218
    assert got["eth0", "system.network.io", "receive"] == 2**64 - 1
    assert got["eth0", "system.network.io", "transmit"] == 884422119
    assert got["eth0", "system.network.packet.count", "transmit"] == 701122
    assert got["eth0", "system.network.errors", "receive"] == 3
    assert got["eth0", "system.network.packet.dropped", "receive"] == 17
    assert got["eth0", "system.network.packet.dropped", "transmit"] == 4
    assert got["eth0:1", "system.network.io", "transmit"] == 24
    assert {m.kind for m in found} == {"counter"}


def test_no_such_file_is_normal(tmp_path: Path) -> None:
    assert Netdev(tmp_path).collect() == []


def test_a_line_of_another_form_says_so() -> None:
    with pytest.raises(ValueError, match="has 2 counters; 16 after a colon are right"):
        parse("head\nhead\n eth0: 1 2\n")


def test_this_machine_has_a_loopback() -> None:
    if not Path("/proc/net/dev").exists():
        pytest.skip("no /proc/net/dev: not Linux")
    assert ("lo", "system.network.io", "receive") in by_key(Netdev().collect())


class Broken:
    name = "broken"

    def collect(self) -> list[Measurement]:
        raise PermissionError("no access to /dev/x")


def test_a_failing_collector_stops_no_other() -> None:
    round_ = collect_all([Broken(), Netdev(PROC)])
    assert round_.failures == {"broken": "PermissionError: no access to /dev/x"}
    up = {m.attributes["pdtrace.collector"]: m.value for m in round_.measurements if m.name == "pdtrace.collector.up"}
    assert up == {"broken": 0, "netdev": 1}
    read = {
        m.attributes["pdtrace.collector"]: m.value
        for m in round_.measurements
        if m.name == "pdtrace.collector.measurements"
    }
    assert read == {"broken": 0, "netdev": 24}
