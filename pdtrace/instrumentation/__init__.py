"""What engines, routers and proxies import to say where a request's time went.

A record per request, stamped on the hot path and encoded in a thread of its own; docs/instrumentation.md shows how.
Importing this loads the standard library and nothing else of weight.
"""

from pdtrace.instrumentation import stages
from pdtrace.instrumentation.clock import Clock, SystemClock
from pdtrace.instrumentation.export import Exporter, ExportError, FileExporter, GrpcExporter, HttpExporter
from pdtrace.instrumentation.record import NO_RECORD, Record
from pdtrace.instrumentation.recorder import Recorder, Stats, default_recorder, set_default
from pdtrace.instrumentation.resource import Resource
from pdtrace.instrumentation.settings import configure

__all__ = [
    "NO_RECORD",
    "Clock",
    "ExportError",
    "Exporter",
    "FileExporter",
    "GrpcExporter",
    "HttpExporter",
    "Record",
    "Recorder",
    "Resource",
    "Stats",
    "SystemClock",
    "configure",
    "default_recorder",
    "set_default",
    "stages",
]
