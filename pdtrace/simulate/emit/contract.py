"""What an emitter is: the teller of true stories in one dialect's words, and where it puts what it wrote.

Owns the two contracts. Knows no dialect, no file format and no transport.
"""

from __future__ import annotations

from typing import Any, Protocol

from pdtrace.simulate.story import Story


class Sink(Protocol):
    """Where finished telemetry goes. Used by one thread."""

    def traces(self, body: bytes) -> None:
        """Take one ExportTraceServiceRequest (protobuf)."""

    def logs(self, body: bytes) -> None:
        """Take one ExportLogsServiceRequest (protobuf)."""

    def records(self, line: dict[str, Any]) -> None:
        """Take one fact that its engine writes beside its telemetry: a line of Dynamo's request trace."""

    def close(self) -> None:
        """Nothing comes any more."""


class Emitter(Protocol):
    """Tells stories in one dialect, with that dialect's gaps. Used by one thread.

    Stamps are those of the clock of the host that would have taken them (``ClusterFacts.stamp``). The same stories, the
    same cluster and the same seed give the same telemetry.
    """

    def emit(self, story: Story) -> None:
        """Tell one request; stories come in order of completion. What was told may wait for company until ``flush``."""

    def worker_state(self, worker: str, state: str, true_ns: int) -> None:
        """Tell that ``worker`` became starting, ready, draining or dead at a true time; nothing in dialects without it."""

    def worker_name(self, worker: str) -> str:
        """What ``worker`` is called in this telemetry."""

    def flush(self) -> None:
        """Hand everything told so far to the sink."""

    def close(self) -> None:
        """``flush``, then close the sink."""
