"""The life of the service process: open, replay, listen, wait, drain.

Owns the order of these steps and signals. Each part does its own work.

    store open -> write-ahead log replayed -> receivers -> ready ... SIGTERM -> receivers stop -> queue written ->
    requests derived -> API stops -> store closed
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from pdtrace import garbage
from pdtrace.api.app import Backend, make_app
from pdtrace.otlp.counters import Counters
from pdtrace.otlp.decode import decode
from pdtrace.otlp.faults import Undecodable
from pdtrace.otlp.grpc_receiver import GrpcReceiver
from pdtrace.otlp.http_receiver import HttpReceiver
from pdtrace.otlp.intake import Intake
from pdtrace.otlp.wal import WriteAheadLog
from pdtrace.pipeline import Pipeline
from pdtrace.reader.local import LocalReader
from pdtrace.service.inbox import Arrival, Inbox
from pdtrace.service.metrics import OwnMetrics
from pdtrace.service.ports import HttpServer, listen, port_of
from pdtrace.service.writer import Writer
from pdtrace.store.duckdb import DuckDBStore

log = logging.getLogger(__name__)

_DRAIN_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.5

#: A crash can leave telemetry stored and not derived; it was received at most this long before the newest.
_UNSETTLED_BACK_NS: Final = 3_600 * 10**9


class ServiceFailed(RuntimeError):
    """The service had to stop by itself; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What `pdtrace serve` was asked for."""

    db: Path  #: the store file
    host: str = "127.0.0.1"
    grpc_port: int = 4317  #: 0 = a free one
    http_port: int = 4318
    api_port: int = 4320
    token: str | None = None  #: bearer token that senders must show
    run: str | None = None  #: label of the requests that arrive
    max_clock_shift_ns: int = 1_000_000_000

    @property
    def wal(self) -> Path:
        """Folder of the write-ahead log, beside the store."""
        return self.db.with_name(self.db.name + ".otlp")


def serve(settings: Settings, ready: Callable[[dict[str, str]], None]) -> None:
    """Run until SIGTERM or SIGINT; ``ready`` gets the addresses (api, grpc, http) once everything is open.

    Raises:
        StoreError, PortTaken, OSError: It could not start.
        ServiceFailed: The writer ended, or what was queued could not be written in time at the end.
    """
    logging.basicConfig(level=logging.INFO, format="pdtrace serve: %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    garbage.spare_what_is_loaded()
    stop = threading.Event()
    with _signals(stop), ExitStack() as opened:
        listener = listen(settings.host, settings.api_port, "the query API")
        backend = Backend()
        api = HttpServer(make_app(backend), listener, "api")
        api.start()  # first, so that /healthz and /readyz answer while a long log is replayed
        opened.callback(api.stop)

        store = DuckDBStore(settings.db)
        opened.callback(store.close)
        wal = WriteAheadLog(settings.wal)
        opened.callback(wal.close)
        pipeline = Pipeline(store, max_clock_shift_ns=settings.max_clock_shift_ns, run=settings.run)
        inbox = Inbox(wal)
        writer = Writer(inbox, pipeline, wal)
        counters = Counters()
        backend.metrics = OwnMetrics(counters, inbox, writer).text

        backend.waiting_for = "the write-ahead log to be replayed"
        pipeline.resume(store.query("unsettled", {"back_ns": _UNSETTLED_BACK_NS})["source"].to_pylist())
        replay(wal, inbox, writer)
        writer.derive()
        writer.start()

        intake = Intake(inbox, counters)
        grpc = GrpcReceiver(intake, host=settings.host, port=settings.grpc_port, token=settings.token)
        http = HttpReceiver(intake, host=settings.host, port=settings.http_port, token=settings.token)
        grpc.start()
        http.start()
        backend.reader = LocalReader(store)
        ready(
            {
                "api": f"http://{settings.host}:{port_of(listener)}",
                "grpc": f"http://{settings.host}:{grpc.port}",
                "http": f"http://{settings.host}:{http.port}",
            }
        )

        while not stop.wait(_LOOK_EVERY_S) and writer.fatal is None:
            pass
        grpc.stop()
        http.stop()
        drained = writer.drain(_DRAIN_S)
        backend.reader = None
        backend.waiting_for = "nothing: the service is stopping"
        if writer.fatal is not None:
            raise ServiceFailed(
                f"the writer ended ({writer.fatal}); start the service again, nothing acknowledged is lost"
            )
        if not drained:
            raise ServiceFailed(f"not all could be written in {_DRAIN_S:.0f} s; the next start replays the rest")


def replay(wal: WriteAheadLog, inbox: Inbox, writer: Writer) -> int:
    """Write what a crash left in the write-ahead log; returns the number of export requests."""
    count = 0
    for entry in wal.replay():
        try:
            batch = decode(
                entry.signal, entry.body, encoding=entry.encoding, received_ns=entry.received_ns, where="replay"
            )
        except Undecodable as problem:  # was decoded once, before the acknowledgement: another version wrote it
            log.error("an entry of the write-ahead log cannot be read any more and is dropped: %s", problem)
            wal.mark_committed([entry.position])
            continue
        batch.rejections = []  # counted when it first came
        inbox.requeue(Arrival(batch, entry.position, len(entry.body), entry.received_ns))
        count += 1
        while inbox.waiting_bytes() > _REPLAY_BYTES:
            writer.write_waiting()
    while inbox.waiting_bytes():
        writer.write_waiting()
    if count:
        log.info("replayed %d export requests that were acknowledged before the last stop", count)
    return count


_REPLAY_BYTES: Final = 8 * 1024 * 1024


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT ask for a drain; a second one ends the process at once (the write-ahead log has the rest)."""

    def asked(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    before = {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
