"""The write-ahead log: nothing acknowledged is lost, nothing torn is read, disk use is bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pdtrace.otlp.intake import Overloaded
from pdtrace.otlp.wal import WriteAheadLog


def bodies(log: WriteAheadLog) -> list[bytes]:
    return [record.body for record in log.replay()]


def reopened(log: WriteAheadLog, directory: Path, **options: Any) -> WriteAheadLog:
    log.close()
    return WriteAheadLog(directory, **options)


def test_what_is_not_committed_comes_back_as_it_was(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("traces", "protobuf", 7, b"one")
    second = log.append("logs", "json", 2**63, b"two")
    log.append("metrics", "protobuf", 0, b"")
    assert bodies(log) == []  # appended now, not found at the start
    log.mark_committed([second])
    log = reopened(log, tmp_path)
    # The second lies between two that are not committed: it comes back too, and the store drops it.
    assert [record[1:] for record in log.replay()] == [
        ("traces", "protobuf", 7, b"one"),
        ("logs", "json", 2**63, b"two"),
        ("metrics", "protobuf", 0, b""),
    ]


def test_committed_in_order_is_gone(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    positions = [log.append("traces", "protobuf", 1, body) for body in (b"a", b"b", b"c")]
    log.mark_committed([positions[1]])
    log.mark_committed([positions[0]])  # any order: only now are both below the mark
    log = reopened(log, tmp_path)
    (record,) = log.replay()
    assert record.body == b"c"
    log.mark_committed([record.position])
    assert bodies(log) == []
    log = reopened(log, tmp_path)
    assert bodies(log) == []


def test_whole_segments_are_deleted_and_the_rest_survives(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path, segment_bytes=200)
    positions = [log.append("traces", "protobuf", i, bytes([i]) * 50) for i in range(20)]
    segments = sorted(tmp_path.glob("*.wal"))
    assert len(segments) > 5
    log.mark_committed(positions[1:18])
    assert sorted(tmp_path.glob("*.wal")) == segments  # the first record still needs the first segment
    log.mark_committed(positions[:1])
    assert len(list(tmp_path.glob("*.wal"))) < 3
    log = reopened(log, tmp_path, segment_bytes=200)
    assert bodies(log) == [bytes([18]) * 50, bytes([19]) * 50]
    assert log.append("traces", "protobuf", 0, b"next") > positions[-1]


@pytest.mark.parametrize("damage", ["cut body", "cut head", "zeros", "flipped"])
def test_a_torn_last_record_is_cut_and_told(tmp_path: Path, damage: str) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("traces", "protobuf", 1, b"whole")
    log.append("traces", "protobuf", 1, b"torn" * 10)
    log.close()
    (segment,) = tmp_path.glob("*.wal")
    data = segment.read_bytes()
    whole = 22 + len(b"whole")
    segment.write_bytes(
        {
            "cut body": data[:-3],
            "cut head": data[: whole + 9],
            "zeros": data[:whole] + bytes(4096),
            "flipped": data[:-1] + b"X",
        }[damage]
    )
    log = WriteAheadLog(tmp_path)
    assert bodies(log) == [b"whole"]
    assert len(log.damage) == 1
    assert "not a whole record" in log.damage[0]
    log.append("traces", "protobuf", 1, b"after")
    log = reopened(log, tmp_path)
    assert bodies(log) == [b"whole", b"after"]
    assert log.damage == []


def test_a_full_log_refuses_until_something_is_committed(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path, segment_bytes=100, max_bytes=1000)
    positions = [log.append("traces", "protobuf", 1, b"x" * 100) for _ in range(8)]  # 122 bytes each
    with pytest.raises(Overloaded, match="full") as refusal:
        log.append("traces", "protobuf", 1, b"x" * 100)
    assert refusal.value.retry_after_s > 0
    assert log.size_bytes <= 1000
    log.mark_committed(positions)
    assert log.append("traces", "protobuf", 1, b"x" * 100) > positions[-1]


def test_a_disk_that_is_full_refuses_and_leaves_no_half_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WriteAheadLog(tmp_path)
    log.append("traces", "protobuf", 1, b"before")
    write = os.write

    def half(fd: int, data: Any) -> int:
        write(fd, bytes(data)[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(Overloaded, match="No space left"):
        log.append("traces", "protobuf", 1, b"lost")
    monkeypatch.setattr(os, "write", write)
    log.append("traces", "protobuf", 1, b"after")
    log = reopened(log, tmp_path)
    assert bodies(log) == [b"before", b"after"]
    assert log.damage == []


def test_a_failed_fsync_acknowledges_nobody_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WriteAheadLog(tmp_path)

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    for _ in range(2):  # the second would succeed if the log trusted the file again
        with pytest.raises(Overloaded, match="Input/output error"):
            log.append("traces", "protobuf", 1, b"x")
        monkeypatch.undo()


def test_one_fsync_serves_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = WriteAheadLog(tmp_path)
    syncs = []
    first_started, go_on = threading.Event(), threading.Event()

    def sync(fd: int) -> None:
        syncs.append(fd)
        first_started.set()
        assert go_on.wait(20)

    monkeypatch.setattr(os, "fdatasync", sync)
    with ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(log.append, "traces", "protobuf", 1, b"first")]
        assert first_started.wait(20)
        futures += [pool.submit(log.append, "traces", "protobuf", 1, b"%d" % i) for i in range(8)]
        while log.size_bytes < 22 * 9 + 5 + 8:  # until all nine are written
            pass
        go_on.set()
        positions = {future.result(20) for future in futures}
    assert len(positions) == 9
    assert len(syncs) == 2


def test_many_threads_and_small_segments(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path, segment_bytes=500)
    sent = [b"body-%d" % i for i in range(120)]
    with ThreadPoolExecutor(6) as pool:
        positions = list(pool.map(lambda body: log.append("traces", "protobuf", 1, body), sent))
    assert len(set(positions)) == 120
    log = reopened(log, tmp_path)
    assert sorted(bodies(log)) == sorted(sent)


def test_two_processes_cannot_share_it(tmp_path: Path) -> None:
    log = WriteAheadLog(tmp_path)
    with pytest.raises(OSError, match="in use by another"):
        WriteAheadLog(tmp_path)
    log.close()
    WriteAheadLog(tmp_path).close()


_WRITER = """
import sys
from pathlib import Path
from pdtrace.otlp.wal import WriteAheadLog
log = WriteAheadLog(Path(sys.argv[1]), segment_bytes=4096)
for i in range(10**9):
    log.append("traces", "protobuf", i, b"%d" % i)
    print(i, flush=True)
"""


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=root
    ) as writer:
        assert writer.stdout is not None
        acknowledged = [int(writer.stdout.readline()) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]
    found = bodies(WriteAheadLog(tmp_path))
    assert found[: len(acknowledged)] == [b"%d" % i for i in acknowledged]
