"""The OTLP/gRPC receiver (4317): TraceService, LogsService and MetricsService.

Owns the gRPC server and its status codes. Raw bytes go to Intake, which decodes and stores.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable
from concurrent import futures
from typing import Final

import grpc
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from pdtrace.otlp.decode import Signal
from pdtrace.otlp.faults import Undecodable
from pdtrace.otlp.intake import Intake, Overloaded
from pdtrace.otlp.replies import bad_request, plain, success, unavailable

_log = logging.getLogger(__name__)
SERVICES: Final[dict[str, Signal]] = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "traces",
    "opentelemetry.proto.collector.logs.v1.LogsService": "logs",
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "metrics",
}
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
#: Threads that wait for the write-ahead log together, so that one fsync serves them all.
_THREADS: Final = 8


class GrpcReceiver:
    """A started server listens until ``stop``.

    Raises:
        OSError: the address cannot be bound (port taken, ...).
    """

    def __init__(
        self,
        intake: Intake,
        *,
        host: str = "127.0.0.1",
        port: int = 4317,
        token: str | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._intake = intake
        self._authorization = f"Bearer {token}".encode() if token else None
        self._server = grpc.server(
            futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="otlp-grpc"),
            options=[
                # Without this a second server opens the same port and the kernel splits the traffic between the two.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_body_bytes),
                # Collectors ping every 10 s; grpc-core's default would answer GOAWAY too_many_pings.
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        for service, signal in SERVICES.items():
            export = grpc.unary_unary_rpc_method_handler(self._export(signal))  # no (de)serialisers: raw bytes
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": export}),))
        try:
            self.port: int = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen for OTLP/gRPC on {host}:{port}: {error}; is the port taken?") from error
        self.address = f"{host}:{self.port}"

    def start(self) -> None:
        """Begin to accept."""
        self._server.start()

    def stop(self, grace_s: float = 5.0) -> None:
        """Refuse new calls, let running ones finish for ``grace_s`` seconds."""
        self._server.stop(grace_s).wait()

    def _export(self, signal: Signal) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def export(body: bytes, context: grpc.ServicerContext) -> bytes:
            if self._authorization is not None and not self._is_authorized(context):
                self._intake.counters.add("refused", "grpc", signal, reason="unauthenticated")
                raise _abort(
                    context,
                    plain(Code.UNAUTHENTICATED, "this service needs the metadata authorization: Bearer <token>"),
                )
            try:
                return success(signal, "protobuf", self._intake.take(signal, body, "protobuf", "grpc"))
            except Undecodable as error:
                refusal = bad_request(str(error))
            except Overloaded as error:
                refusal = unavailable(str(error), error.retry_after_s)
            except Exception:  # noqa: BLE001 - whatever failed, the sender gets an answer without our internals
                _log.exception("cannot store an OTLP request")
                self._intake.counters.add("refused", "grpc", signal, reason="internal")
                refusal = plain(Code.INTERNAL, "pdtrace failed; see its log")
            raise _abort(context, refusal)

        return export

    def _is_authorized(self, context: grpc.ServicerContext) -> bool:
        for key, value in context.invocation_metadata():
            if key == "authorization":
                sent = value.encode() if isinstance(value, str) else value
                return hmac.compare_digest(sent, self._authorization or b"")
        return False


def _abort(context: grpc.ServicerContext, status: Status) -> Exception:
    """End the call with ``status``. grpc raises here already; ``raise`` before the call tells readers so."""
    context.abort_with_status(rpc_status.to_status(status))
    return RuntimeError("grpc's abort returned")
