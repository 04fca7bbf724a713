"""The service's own Prometheus metrics.

Owns names and help texts. The numbers are the counters of receivers, inbox and writer, read when asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdtrace import __version__
from pdtrace.otlp.counters import Counters
from pdtrace.service.inbox import Inbox
from pdtrace.service.writer import Writer, Written

#: Field of Written -> metric name, what it counts.
_WRITTEN: Final[tuple[tuple[str, str, str], ...]] = (
    ("spans", "pdtrace_spans_stored", "Spans stored; duplicates are not."),
    ("records", "pdtrace_records_stored", "Request records stored."),
    ("logs", "pdtrace_logs_stored", "Log records stored."),
    ("points", "pdtrace_points_stored", "Metric points stored."),
    ("duplicates", "pdtrace_duplicates", "Spans and records that were there already."),
    ("conflicts", "pdtrace_conflicts", "Spans of a stored id with other content."),
    ("rejected", "pdtrace_rejected", "Things that were not kept, with a reason (see pdtrace doctor)."),
    ("transactions", "pdtrace_transactions", "Transactions that stored telemetry."),
    ("store_failures", "pdtrace_store_failures", "Transactions that failed and were tried again."),
    ("lost", "pdtrace_lost", "Spans, records, logs and points that the store refused for good."),
    ("derived", "pdtrace_requests_derived", "Requests derived, again or for the first time."),
    ("closed", "pdtrace_requests_closed", "Requests closed because nothing came for the quiet time."),
    ("derive_failures", "pdtrace_derive_failures", "Derivations of everything that failed (see pdtrace doctor)."),
    ("add_seconds", "pdtrace_store_seconds", "Time spent storing."),
    ("derive_seconds", "pdtrace_derive_seconds", "Time spent deriving."),
)

#: Counter of the receivers -> what it counts.
_RECEIVED: Final[dict[str, str]] = {
    "requests": "Export requests that arrived.",
    "bytes": "Decompressed bytes that arrived.",
    "accepted": "Spans, logs and points that were acknowledged.",
    "rejected": "Spans, logs and points that were not kept, by reason.",
    "refused": "Export requests that were not taken, by reason.",
    "decode_seconds": "CPU time spent decoding.",
}


class _Own(Collector):
    def __init__(self, counters: Counters, inbox: Inbox, writer: Writer) -> None:
        self._counters = counters
        self._inbox = inbox
        self._writer = writer

    def collect(self) -> Iterator[Metric]:
        written: Written = self._writer.counts
        for field, name, text in _WRITTEN:
            yield CounterMetricFamily(name, text, value=getattr(written, field))
        yield CounterMetricFamily(
            "pdtrace_requests_failed",
            "Requests that could not be derived (see pdtrace doctor).",
            value=self._writer.failed_requests,
        )
        yield CounterMetricFamily("pdtrace_refused_overload", "Exports told to come back.", value=self._inbox.refused)
        yield GaugeMetricFamily(
            "pdtrace_inbox_bytes", "Encoded bytes accepted and not committed.", value=self._inbox.waiting_bytes()
        )
        oldest_ns = self._inbox.oldest_received_ns()
        waiting_s = 0.0 if oldest_ns is None else max(0.0, (time.time_ns() - oldest_ns) / 1e9)
        yield GaugeMetricFamily("pdtrace_inbox_oldest_seconds", "Age of the oldest queued export.", value=waiting_s)
        yield GaugeMetricFamily(
            "pdtrace_commit_lag_seconds",
            "Receive to commit, of the last transaction's oldest export.",
            value=written.committed_lag_ns / 1e9,
        )
        yield GaugeMetricFamily(
            "pdtrace_writer_up", "1 while the writer runs.", value=float(self._writer.fatal is None)
        )
        build = GaugeMetricFamily("pdtrace_build", "Version of this process.", labels=["version"])
        build.add_metric([__version__], 1.0)
        yield build
        yield from self._received()

    def _received(self) -> Iterator[Metric]:
        families = {
            name: CounterMetricFamily(f"pdtrace_receiver_{name}", text, labels=["transport", "signal", "reason"])
            for name, text in _RECEIVED.items()
        }
        for key, amount in self._counters.snapshot().items():
            if key.name in families:
                families[key.name].add_metric([key.transport, key.signal, key.reason], amount)
        yield from families.values()


class OwnMetrics:
    """The Prometheus text of this process."""

    def __init__(self, counters: Counters, inbox: Inbox, writer: Writer) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._registry.register(_Own(counters, inbox, writer))

    def text(self) -> bytes:
        """Exposition format 0.0.4."""
        return generate_latest(self._registry)
