"""One file or stdin as a stream of bytes: gzip opened by its content, a look at the head, damage told at the end.

Owns decompression of files. Does not know kinds.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self, cast

_GZIP_MAGIC: Final = b"\x1f\x8b"
_CHUNK_BYTES: Final = 256 * 1024
HEAD_BYTES: Final = 64 * 1024


class _Replayed(io.RawIOBase):
    """Bytes already taken, then the rest of a stream."""

    def __init__(self, head: bytes, rest: IO[bytes]) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        taken = self._head[: len(buffer)]
        self._head = self._head[len(taken) :]
        taken = taken or self._rest.read(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)


class _Inflated(io.RawIOBase):
    """What a gzip stream holds, as far as it can be read; ``fault`` says why it stopped early."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._gzip = gzip.GzipFile(fileobj=packed, mode="rb")
        self.fault = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self.fault:
            return 0
        try:
            # read1: plain read() would lose what it has when the end turns out to be missing.
            taken = self._gzip.read1(len(buffer))
        except EOFError:
            self.fault = "the gzip stream is truncated: what comes before its end was read"
            return 0
        except (gzip.BadGzipFile, zlib.error) as error:
            self.fault = f"the gzip stream is damaged ({error}): what comes before the damage was read"
            return 0
        buffer[: len(taken)] = taken
        return len(taken)


def _buffered(raw: io.RawIOBase) -> IO[bytes]:
    return cast("IO[bytes]", io.BufferedReader(raw, _CHUNK_BYTES))


class Source:
    """An opened file; ``stream`` is positioned at its start, ``head`` is a copy of its first bytes.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.name = "stdin" if path == "-" else path
        self._file: IO[bytes] = sys.stdin.buffer if path == "-" else Path(path).open("rb")  # noqa: SIM115 - __exit__
        magic = self._file.read(len(_GZIP_MAGIC))
        content = _buffered(_Replayed(magic, self._file))
        self._inflated = _Inflated(content) if magic == _GZIP_MAGIC else None
        if self._inflated is not None:
            content = _buffered(self._inflated)
        self.head = content.read(HEAD_BYTES)
        self.stream = _buffered(_Replayed(self.head, content))

    @property
    def fault(self) -> str:
        """Why the content ended before its proper end, "" if it did not (known when all is read)."""
        return self._inflated.fault if self._inflated else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not sys.stdin.buffer:
            self._file.close()
