"""Network interfaces of the host, from /proc/net/dev.

Owns that file. RDMA traffic bypasses it: a KV transfer over RoCE or InfiniBand does not show here.
"""

from __future__ import annotations

from pathlib import Path

from pdtrace_collectors.contract import Measurement

#: (column in the receive half, column in the transmit half, metric, unit). Columns of a line after the colon:
#: receive bytes packets errs drop fifo frame compressed multicast, transmit bytes packets errs drop fifo colls carrier
#: compressed. Source: Linux net/core/net-procfs.c; metric names: OpenTelemetry semantic conventions 1.44.
_COLUMNS = (
    (0, 8, "system.network.io", "By"),
    (1, 9, "system.network.packet.count", "{packet}"),
    (2, 10, "system.network.errors", "{error}"),
    (3, 11, "system.network.packet.dropped", "{packet}"),
)


class Netdev:
    """Reads ``<procfs>/net/dev``.

    Args:
        procfs: root of the proc file system; another root reads a fixture or a host mounted elsewhere.
    """

    name = "netdev"

    def __init__(self, procfs: Path = Path("/proc")) -> None:
        self._path = procfs / "net" / "dev"

    def collect(self) -> list[Measurement]:
        """Counters of every interface; [] where there is no such file (not Linux)."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return []
        return parse(text)


def parse(text: str) -> list[Measurement]:
    """Measurements from the text of /proc/net/dev.

    Raises:
        ValueError: a line is not of the known form.
    """
    found: list[Measurement] = []
    for line in text.splitlines()[2:]:
        interface, colon, rest = line.rpartition(":")  # the last colon: an alias may be called eth0:1
        fields = rest.split()
        if not colon or len(fields) < 16:
            raise ValueError(f"/proc/net/dev: {line.strip()!r} has {len(fields)} counters; 16 after a colon are right")
        for receive, transmit, name, unit in _COLUMNS:
            for column, direction in ((receive, "receive"), (transmit, "transmit")):
                attributes: dict[str, str | int | float | bool] = {
                    "network.interface.name": interface.strip(),
                    "network.io.direction": direction,
                }
                found.append(Measurement(name, "counter", unit, int(fields[column]), attributes))
    return found
