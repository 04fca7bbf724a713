"""The write-ahead log: accepted request bodies on disk before they are acknowledged, until the store has them.

Owns the files of one directory. Does not decode bodies and does not know the store.

A record is [magic 4][length u32][crc32 u32][signal u8][encoding u8][received_ns u64][body], little endian; the crc
covers all after itself. A segment is named by the position of its first byte; a position is the end of a record in
the endless stream of all segments. The file `committed` holds the position below which everything is in the store.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from pdtrace.otlp.decode import Encoding, Signal
from pdtrace.otlp.intake import Overloaded

_log = logging.getLogger(__name__)
_MAGIC: Final = b"PDW1"
_HEAD: Final = struct.Struct("<4sIIBBQ")
_CHECKED: Final = struct.Struct("<BBQ")  #: the part of the head under the crc
_SIGNALS: Final[tuple[Signal, ...]] = ("traces", "logs", "metrics")
_ENCODINGS: Final[tuple[Encoding, ...]] = ("protobuf", "json")
_RETRY_AFTER_S: Final = 2.0


class WalRecord(NamedTuple):
    """One accepted request body."""

    position: int  #: pass it to mark_committed once the store has it
    signal: Signal
    encoding: Encoding
    received_ns: int
    body: bytes


class WriteAheadLog:
    """Append from any thread; one fsync serves all who wait for it. One process at a time owns a directory.

    Raises:
        OSError: the directory cannot be used, or another process uses it.
    """

    def __init__(
        self, directory: Path, *, segment_bytes: int = 16 * 1024 * 1024, max_bytes: int = 1024 * 1024 * 1024
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._max_bytes = max_bytes
        self._lock_fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            raise OSError(f"the write-ahead log {directory} is in use by another pdtrace") from error
        self._changed = threading.Condition()
        self._syncing = False
        self._closed = False
        self._broken = ""  #: why no more can be written, once an fsync failed
        self._starts: list[int] = []  #: first position of each segment, oldest first
        self._uncommitted: dict[int, int] = {}  #: end -> start of each record not in the store, in order
        self._fd = -1
        #: What was found damaged and left out when the directory was opened, in words.
        self.damage: list[str] = []
        self._end = self._recover()
        self._synced = self._end
        self._replayable = tuple(self._uncommitted)
        self._open_segment()

    @property
    def size_bytes(self) -> int:
        """Bytes on disk, committed ones of the oldest segment included."""
        return self._end - self._starts[0]

    def append(self, signal: Signal, encoding: Encoding, received_ns: int, body: bytes) -> int:
        """Write one record and return its position when it is on the disk.

        Raises:
            Overloaded: the log is full (the store lags behind) or the disk is.
        """
        checked = _CHECKED.pack(_SIGNALS.index(signal), _ENCODINGS.index(encoding), received_ns)
        crc = zlib.crc32(body, zlib.crc32(checked))
        record = b"".join((_MAGIC, struct.pack("<II", len(body), crc), checked, body))
        with self._changed:
            if self._closed or self._broken:
                raise Overloaded(_RETRY_AFTER_S, self._broken or "the write-ahead log is closed")
            if self.size_bytes + len(record) > self._max_bytes:
                raise Overloaded(_RETRY_AFTER_S, f"the write-ahead log is full ({self._max_bytes} bytes)")
            if self._end - self._starts[-1] + len(record) > self._segment_bytes and self._end > self._starts[-1]:
                self._rotate()
            self._write(record)
            position = self._end + len(record)
            self._uncommitted[position] = self._end
            self._end = position
        self._sync(position)
        return position

    def replay(self) -> Iterator[WalRecord]:
        """What was in the log when it was opened and is not in the store yet, oldest first."""
        wanted = set(self._replayable) & self._uncommitted.keys()
        for start in sorted({self._segment_of(self._uncommitted[position]) for position in wanted}):
            for record in _records(self._path(start), start)[0]:
                if record.position in wanted:
                    yield record

    def mark_committed(self, positions: Iterable[int]) -> None:
        """Forget records that the store has now, in any order; deletes segments that nobody needs any more."""
        with self._changed:
            for position in positions:
                self._uncommitted.pop(position, None)
            low = next(iter(self._uncommitted.values()), self._end)
            try:
                self._write_committed(low)
            except OSError as failure:  # an older mark only costs time at the next start
                _log.warning("the write-ahead log cannot note its committed position: %s", failure)
            while len(self._starts) > 1 and self._starts[1] <= low:
                self._path(self._starts.pop(0)).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; what is not committed stays for the next start."""
        with self._changed:
            self._wait_for_sync()
            if self._closed:
                return
            self._closed = True
            os.close(self._fd)
            os.close(self._lock_fd)

    def _sync(self, position: int) -> None:
        """Return when everything up to ``position`` is on the disk: one waiter syncs, the others share it."""
        with self._changed:
            while self._syncing and self._synced < position:
                self._changed.wait()
            if self._synced >= position:
                return
            if self._broken:
                raise Overloaded(_RETRY_AFTER_S, self._broken)
            self._syncing = True
            reached, fd = self._end, self._fd
        error = ""
        try:
            os.fdatasync(fd)
        except OSError as failure:
            # After a failed fsync the kernel may have dropped the pages: nothing more can be promised on this file.
            error = f"the write-ahead log cannot be written: {failure}"
            _log.error(error)
        with self._changed:
            self._syncing = False
            if error:
                self._broken = error
            else:
                self._synced = max(self._synced, reached)
            self._changed.notify_all()
        if error:
            raise Overloaded(_RETRY_AFTER_S, error)

    def _wait_for_sync(self) -> None:
        while self._syncing:
            self._changed.wait()

    def _write(self, record: bytes) -> None:
        written = 0
        try:
            while written < len(record):
                written += os.write(self._fd, memoryview(record)[written:])
        except OSError as failure:
            offset = self._end - self._starts[-1]
            os.ftruncate(self._fd, offset)
            os.lseek(self._fd, offset, os.SEEK_SET)
            raise Overloaded(_RETRY_AFTER_S, f"the write-ahead log cannot be written: {failure}") from failure

    def _rotate(self) -> None:
        self._wait_for_sync()
        try:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._starts.append(self._end)
            self._open_segment()
        except OSError as failure:
            self._broken = f"the write-ahead log cannot be written: {failure}"
            raise Overloaded(_RETRY_AFTER_S, self._broken) from failure
        self._synced = self._end
        self._changed.notify_all()

    def _open_segment(self) -> None:
        self._fd = os.open(self._path(self._starts[-1]), os.O_RDWR | os.O_CREAT, 0o644)
        os.lseek(self._fd, 0, os.SEEK_END)
        self._sync_directory()

    def _sync_directory(self) -> None:
        fd = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _path(self, start: int) -> Path:
        return self._directory / f"{start:020d}.wal"

    def _segment_of(self, position: int) -> int:
        return max(start for start in self._starts if start <= position)

    def _committed_path(self) -> Path:
        return self._directory / "committed"

    def _write_committed(self, low: int) -> None:
        """Not synced: an older value after a crash only means that some records are stored twice, and dropped there."""
        new = self._directory / "committed.new"
        new.write_text(str(low))
        new.replace(self._committed_path())

    def _recover(self) -> int:
        """Read all segments, cut a torn end, note damage; the end position."""
        try:
            committed = int(self._committed_path().read_text())
        except (OSError, ValueError):
            committed = 0
        starts = sorted(int(path.stem) for path in self._directory.glob("*.wal") if path.stem.isdigit())
        end = committed
        for start in starts:
            records, good_bytes, file_bytes = _records(self._path(start), start)
            previous = start
            for record in records:
                if record.position > committed:
                    self._uncommitted[record.position] = previous
                previous = record.position
            if good_bytes < file_bytes:
                cut_bytes = file_bytes - good_bytes
                cut = f"{self._path(start)}: {cut_bytes} bytes after byte {good_bytes} are not a whole record"
                self.damage.append(f"{cut}; they were left out (a crash in the middle of a write does this)")
                _log.warning(self.damage[-1])
                with self._path(start).open("r+b") as file:
                    file.truncate(good_bytes)
                    os.fsync(file.fileno())
            end = start + good_bytes
        if end < committed:  # files were removed by hand: positions must not be taken for committed ones again
            self._write_committed(end)
        self._starts = starts or [end]
        return end


def _records(path: Path, start: int) -> tuple[list[WalRecord], int, int]:
    """Whole records of one segment, the bytes they fill, and the size of the file."""
    data = path.read_bytes()
    records: list[WalRecord] = []
    offset = 0
    while offset + _HEAD.size <= len(data):
        magic, length, crc, signal, encoding, received_ns = _HEAD.unpack_from(data, offset)
        stop = offset + _HEAD.size + length
        if magic != _MAGIC or stop > len(data) or zlib.crc32(memoryview(data)[offset + 12 : stop]) != crc:
            break
        if signal >= len(_SIGNALS) or encoding >= len(_ENCODINGS):
            break
        body = data[offset + _HEAD.size : stop]
        records.append(WalRecord(start + stop, _SIGNALS[signal], _ENCODINGS[encoding], received_ns, body))
        offset = stop
    return records, offset, len(data)
