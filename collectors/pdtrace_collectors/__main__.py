"""`python -m pdtrace_collectors`: read this machine's devices every few seconds and send them as OTLP metrics.

Owns the list of collectors, the options and the loop.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from pathlib import Path

from pdtrace_collectors.contract import Collector, collect_all
from pdtrace_collectors.export import Export
from pdtrace_collectors.netdev import Netdev
from pdtrace_collectors.nvml import Nvml, load_library

_log = logging.getLogger("pdtrace_collectors")


def collectors(procfs: Path) -> list[Collector]:
    """Every collector, in the order they run."""
    return [Netdev(procfs), Nvml(load_library())]


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C (or once); returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pdtrace_collectors", description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", default="http://127.0.0.1:4317", help="OTLP receiver (%(default)s)")
    parser.add_argument("--protocol", choices=("grpc", "http"), default="grpc", help="(%(default)s)")
    parser.add_argument("--interval", type=float, default=5.0, metavar="S", help="seconds between rounds (%(default)s)")
    parser.add_argument("--procfs", type=Path, default=Path("/proc"), help="root of the proc file system (%(default)s)")
    parser.add_argument("--host", default=None, help="host.name to send (this machine's name)")
    parser.add_argument("--once", action="store_true", help="one round, then exit: 0 sent, 1 not taken")
    options = parser.parse_args(argv)
    if options.interval <= 0:
        parser.error(f"--interval {options.interval:g} must be above 0 seconds")
    logging.basicConfig(level=logging.INFO, format="pdtrace collect: %(message)s", stream=sys.stderr)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    export = Export(options.endpoint, options.protocol, options.host)
    try:
        return _run(collectors(options.procfs), export, options.interval, once=options.once, stop=stop)
    finally:
        export.close()


def _run(active: list[Collector], export: Export, interval_s: float, *, once: bool, stop: threading.Event) -> int:
    said: dict[str, str] = {}
    while True:
        round_ = collect_all(active)
        for name in said.keys() - round_.failures.keys():
            _log.info("%s works again", name)
        for name, why in round_.failures.items():
            if said.get(name) != why:  # a failure that lasts is said once
                _log.warning("%s failed: %s", name, why)
        said = round_.failures
        sent = export.send(round_.measurements, time.time_ns())
        if once:
            return 0 if sent else 1
        if stop.wait(interval_s):
            return 0


if __name__ == "__main__":
    sys.exit(main())
