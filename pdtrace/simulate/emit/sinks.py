"""Where simulated telemetry goes: files that `pdtrace ingest` reads, an OTLP endpoint, or a list.

Owns framing, file names and the HTTP calls. Does not know what the bodies say.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any, Final, Literal

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

Signal = Literal["traces", "logs"]

#: Names of the files of a folder. Ingest tells kinds by content; the names are for people.
TRACES_FILE: Final = "traces.otlp.bin"
LOGS_FILE: Final = "logs.otlp.bin"
RECORDS_FILE: Final = "request_trace.jsonl"
_REQUEST_TRACE_SCOPE: Final = "dynamo.request_trace"


class NotDelivered(RuntimeError):
    """The endpoint did not take a request body; the text says why."""


class MemorySink:
    """Keeps everything, in order: for tests and for ingesting in the same process."""

    def __init__(self) -> None:
        self.bodies: list[tuple[Signal, bytes]] = []
        self.lines: list[dict[str, Any]] = []
        self.closed = False

    def traces(self, body: bytes) -> None:
        """Keep one ExportTraceServiceRequest."""
        self.bodies.append(("traces", body))

    def logs(self, body: bytes) -> None:
        """Keep one ExportLogsServiceRequest."""
        self.bodies.append(("logs", body))

    def records(self, line: dict[str, Any]) -> None:
        """Keep one line."""
        self.lines.append(line)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class FileSink:
    """Files as `pdtrace ingest` reads them: varint-delimited OTLP protobuf, and JSON lines for records.

    Args:
        path: A folder, made if need be, for the three files named above; or, if it has a suffix, the file of the traces,
            beside which logs and records get ``.logs`` and ``.records`` put before the suffix. A file is written only
            when there is something for it; one that is there is replaced.

    Raises:
        OSError: the folder or a file cannot be made.
    """

    def __init__(self, path: str | Path) -> None:
        at = Path(path)
        if at.suffix and not at.is_dir():
            at.parent.mkdir(parents=True, exist_ok=True)
            self._traces, self._logs = at, at.with_name(f"{at.stem}.logs{at.suffix}")
            self._records = at.with_name(f"{at.stem}.records.jsonl")
        else:
            at.mkdir(parents=True, exist_ok=True)
            self._traces, self._logs, self._records = at / TRACES_FILE, at / LOGS_FILE, at / RECORDS_FILE
        self._open: dict[Path, IO[bytes]] = {}

    def traces(self, body: bytes) -> None:
        """Append one framed ExportTraceServiceRequest."""
        self._write(self._traces, framed(body))

    def logs(self, body: bytes) -> None:
        """Append one framed ExportLogsServiceRequest."""
        self._write(self._logs, framed(body))

    def records(self, line: dict[str, Any]) -> None:
        """Append one line of JSON."""
        self._write(self._records, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Close the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _write(self, path: Path, data: bytes) -> None:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = path.open("wb")
        file.write(data)


class OtlpSink:
    """Sends every body to an OTLP/HTTP endpoint at once; records go as the OTLP logs that Dynamo can send them as.

    Args:
        url: Base URL, e.g. "http://127.0.0.1:4318"; the paths /v1/traces and /v1/logs are added.
        timeout_s: For one request.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"an OTLP endpoint is a URL like http://127.0.0.1:4318, not {url!r}")
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def traces(self, body: bytes) -> None:
        """Send one ExportTraceServiceRequest; raises NotDelivered."""
        self._post("/v1/traces", body)

    def logs(self, body: bytes) -> None:
        """Send one ExportLogsServiceRequest; raises NotDelivered."""
        self._post("/v1/logs", body)

    def records(self, line: dict[str, Any]) -> None:
        """Send one line of a request trace as an OTLP log; raises NotDelivered."""
        self.logs(record_as_log(line))

    def close(self) -> None:
        """Nothing is held open."""

    def _post(self, path: str, body: bytes) -> None:
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked above
            self._url + path, data=body, headers={"content-type": "application/x-protobuf"}, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
                answer.read()
        except urllib.error.HTTPError as error:
            said = error.read(300).decode("utf-8", "replace")
            raise NotDelivered(f"{self._url}{path} answered {error.code}: {said}") from error
        except OSError as error:
            raise NotDelivered(f"{self._url}{path} cannot be reached: {error}") from error


def framed(body: bytes) -> bytes:
    """``body`` behind its length as a base-128 number."""
    size, head = len(body), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + body


def record_as_log(line: dict[str, Any]) -> bytes:
    """A line of Dynamo's request trace as the ExportLogsServiceRequest that Dynamo's OTLP form of it is.

    Source: captures dynamo-1.5.1 (scope ``dynamo.request_trace``, attributes ``rid`` and ``payload``).
    """
    event = line["event"]
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "dynamo-frontend"
    scope = resource.scope_logs.add()
    scope.scope.name = _REQUEST_TRACE_SCOPE
    log = scope.log_records.add(observed_time_unix_nano=event["event_time_unix_ms"] * 1_000_000)
    log.attributes.add(key="rid").value.string_value = event["request"]["request_id"]
    log.attributes.add(key="payload").value.string_value = json.dumps(event, separators=(",", ":"))
    body: bytes = request.SerializeToString()
    return body
