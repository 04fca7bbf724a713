"""An ExportLogsServiceRequest, in any encoding whose fields Leaves can read, to Logs.

Owns the walk over resource, scope and log record. Does not parse bytes and does not interpret what is logged.
"""

from __future__ import annotations

from typing import Any

from pdtrace.model import Log
from pdtrace.otlp.faults import INT64_MAX, BadField
from pdtrace.otlp.leaves import Leaves


def walk_logs(request: Any, leaves: Leaves, *, received_ns: int) -> list[Log]:
    """Logs of ``request`` in order; what cannot be kept is in ``leaves.faults``."""
    logs: list[Log] = []
    for resource_logs in request.resource_logs or ():
        resource = leaves.attributes(resource_logs.resource.attributes) if resource_logs.resource else {}
        for scope_logs in resource_logs.scope_logs or ():
            scope = leaves.text(scope_logs.scope.name, "a scope name") if scope_logs.scope else ""
            for raw in scope_logs.log_records or ():
                try:
                    log = _log(raw, leaves)
                except BadField as fault:
                    leaves.faults.add("log", str(fault), f"scope {scope}")
                    continue
                log.scope = scope
                log.resource = resource
                log.received_ns = received_ns
                logs.append(log)
    return logs


def _log(raw: Any, leaves: Leaves) -> Log:
    time_ns = leaves.integer(raw.time_unix_nano) or leaves.integer(raw.observed_time_unix_nano)
    if not 0 <= time_ns <= INT64_MAX:
        raise BadField("log time must be Unix nanoseconds, not negative and below 2**63")
    severity = leaves.text(raw.severity_text, "a severity")
    return Log(
        time_ns,
        severity or _severity_name(leaves.enum(raw.severity_number, "SEVERITY_NUMBER_")),
        leaves.text(raw.event_name, "an event name"),
        leaves.value(raw.body, "a log body") if raw.body else None,
        "",
        {},
        leaves.attributes(raw.attributes or ()),
        _context_id(leaves.hex_id(raw.trace_id), 32, leaves),
        _context_id(leaves.hex_id(raw.span_id), 16, leaves),
    )


def _context_id(hex_id: str, length: int, leaves: Leaves) -> str:
    """The id of the span the log was written in; "" if there is none. A bad one does not cost the log."""
    if hex_id and len(hex_id) != length:
        leaves.faults.add("attribute", f"a log's id that is not {length // 2} bytes long was left out")
        return ""
    return hex_id if hex_id.strip("0") else ""


def _severity_name(number: int) -> str:
    """TRACE, DEBUG, INFO, WARN, ERROR, FATAL by ranges of four; "" if unset (OTLP logs.proto, SeverityNumber)."""
    return ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")[(number - 1) // 4] if 1 <= number <= 24 else ""
