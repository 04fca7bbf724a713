"""Files to batches: OTLP exports, request traces and benchmark results, plain or gzipped, the kind told by the content.

Owns reading files. Does not store, and does not know what an engine's names mean.
"""

from pdtrace.importers.file_import import FileImport, read_path

__all__ = ["FileImport", "read_path"]
