"""Who reports: the process, its worker and its host, as OTLP resource attributes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Resource:
    """One reporting process. What is empty or None is left out.

    ``host_name`` names the clock of every stamp: two processes of one host must give the same. "" = this host's name.
    ``instance_id`` is the worker; "" = host name and process id.
    """

    service_name: str = "pdtrace"
    instance_id: str = ""
    host_name: str = ""
    role: str = ""  #: router, prefill, decode, aggregated
    pool: str = ""
    gpus: int | None = None
    gpu_type: str = ""
    tp: int | None = None
    pp: int | None = None
    run: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def attributes(self) -> dict[str, Any]:
        """Resource attributes by their OpenTelemetry name."""
        host = self.host_name or socket.gethostname()
        named = {
            "service.name": self.service_name,
            "service.instance.id": self.instance_id or f"{host}:{os.getpid()}",
            "host.name": host,
            "pdtrace.worker.role": self.role,
            "pdtrace.worker.pool": self.pool,
            "pdtrace.worker.gpus": self.gpus,
            "pdtrace.worker.gpu_type": self.gpu_type,
            "pdtrace.worker.tp": self.tp,
            "pdtrace.worker.pp": self.pp,
            "pdtrace.run": self.run,
        }
        return {name: value for name, value in named.items() if value not in ("", None)} | dict(self.extra)
