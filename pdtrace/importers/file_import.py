"""Files and folders to Batches of bounded size, and the list of files that were not read, with reasons.

Owns the walk and the size of batches. Reading one file is readers.py's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pdtrace.importers.kinds import kind_of, why_not
from pdtrace.importers.readers import read
from pdtrace.importers.source import Source
from pdtrace.model import Batch

_BATCH_ITEMS: Final = 5_000  #: spans, records, logs, points and rejections of one batch, about


class FileImport:
    """One PATH of the command line: a file, a folder, or "-" for stdin.

    Raises:
        FileNotFoundError: from ``batches``: there is no such file or folder.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        #: Files not read -> why. Complete once ``batches`` is exhausted.
        self.skipped: dict[str, str] = {}

    def batches(self) -> Iterator[Batch]:
        """Everything that can be read, in chunks; files in sorted order."""
        batch = Batch()
        for path in self._files():
            for part in self._read(path):
                _extend(batch, part)
                if _items(batch) >= _BATCH_ITEMS:
                    yield batch
                    batch = Batch()
        if _items(batch):
            yield batch

    def _files(self) -> Iterator[str]:
        if self._path == "-" or not Path(self._path).is_dir():
            yield self._path
            return
        for folder, folders, files in os.walk(self._path):
            folders.sort()
            for name in sorted(files):
                yield os.path.join(folder, name)  # noqa: PTH118 - a string as the user would type it

    def _read(self, path: str) -> Iterator[Batch]:
        if Path(path).name.startswith("ground_truth."):
            self.skipped[path] = "ground truth of a simulation, not telemetry"
            return
        try:
            with Source(path) as source:
                kind = kind_of(source.head)
                if kind is None:
                    self.skipped[path] = source.fault or why_not(source.head)
                    return
                yield from read(source, kind)
        except FileNotFoundError:
            if path == self._path:
                raise
            self.skipped[path] = "the file went away"
        except OSError as error:
            self.skipped[path] = f"cannot be read: {error.strerror or error}"


def read_path(path: str | Path) -> Iterator[Batch]:
    """Batches of one PATH, for callers that do not need to know what was skipped."""
    return FileImport(path).batches()


def _extend(batch: Batch, part: Batch) -> None:
    batch.spans += part.spans
    batch.records += part.records
    batch.logs += part.logs
    batch.points += part.points
    batch.rejections += part.rejections


def _items(batch: Batch) -> int:
    return len(batch.spans) + len(batch.records) + len(batch.logs) + len(batch.points) + len(batch.rejections)
