"""OTLP/HTTP against the rules of the specification, one by one, over a real socket."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import zstandard
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from pdtrace.otlp.counters import CounterKey, Counters
from pdtrace.otlp.intake import Overloaded

PROTOBUF = "application/x-protobuf"
LIMIT = 200_000


@pytest.fixture
def post(serve_http: Callable[..., str]) -> Iterator[Callable[..., httpx.Response]]:
    url = serve_http(max_body_bytes=LIMIT)
    with httpx.Client(base_url=url, timeout=30) as client:

        def send(body: bytes, *, path: str = "/v1/traces", content_type: str = PROTOBUF, **headers: str) -> Any:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            return client.post(path, content=body, headers={"content-type": content_type} | named)

        yield send


def status_of(response: httpx.Response) -> Status:
    """The google.rpc.Status of a protobuf error answer."""
    assert response.headers["content-type"] == PROTOBUF
    status = Status.FromString(response.content)
    assert status.message
    return status


def test_full_success_has_an_empty_answer(post: Any, one_span: Any, sink: Any) -> None:
    response = post(one_span())
    assert (response.status_code, response.content) == (200, b"")
    assert response.headers["content-type"] == PROTOBUF
    assert [span.name for span in sink.spans] == ["decode"]


def test_empty_requests_succeed_on_every_path(post: Any, sink: Any) -> None:
    for path in ("/v1/traces", "/v1/logs", "/v1/metrics"):
        assert post(b"", path=path).status_code == 200
        response = post(b"{}", path=path, content_type="application/json; charset=utf-8")
        assert (response.status_code, response.content) == (200, b"{}")
        assert response.headers["content-type"] == "application/json"
    assert sink.accepted == []


def test_partial_success_counts_and_says_why(post: Any, one_span: Any, sink: Any, counters: Counters) -> None:
    response = post(one_span(trace_id=b"") + one_span())
    partial = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert (response.status_code, partial.rejected_spans) == (200, 1)
    assert "trace_id must be 16 bytes" in partial.error_message
    assert len(sink.spans) == 1
    assert counters.total("accepted") == 1
    assert counters.total("rejected", "trace_id must be 16 bytes") == 1


def test_partial_success_in_json(post: Any) -> None:
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "00", "name": "n"}]}]}]}
    response = post(json.dumps(body).encode(), content_type="application/json")
    assert response.json()["partialSuccess"]["rejectedSpans"] == "1"
    assert "trace_id" in response.json()["partialSuccess"]["errorMessage"]


def test_a_warning_rejects_nothing_but_says_something(post: Any, one_span: Any, sink: Any) -> None:
    response = post(one_span(name="n" * 70_000))
    partial = ExportTraceServiceResponse.FromString(response.content).partial_success
    assert partial.rejected_spans == 0
    assert "65536 bytes" in partial.error_message
    assert len(partial.error_message.encode()) <= 1024
    assert len(sink.spans[0].name) == 65_536


def test_undecodable_is_400_with_a_bad_request_detail(post: Any) -> None:
    status = status_of(post(b"\xff" * 9))
    detail = BadRequest()
    assert status.details[0].Unpack(detail)
    assert "not a protobuf" in detail.field_violations[0].description
    response = post(b'{"resourceSpans": 5}', content_type="application/json")
    assert response.status_code == 400
    assert response.json()["code"] == 3
    assert "$.resourceSpans" in response.json()["message"]


def test_wrong_path_method_and_type(post: Any, serve_http: Any) -> None:
    missing = post(b"", path="/v1/trace")
    assert missing.status_code == 404
    assert "/v1/traces" in status_of(missing).message
    url = serve_http()
    for method in ("GET", "PUT", "DELETE", "HEAD"):
        response = httpx.request(method, f"{url}/v1/traces")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert "POST" in httpx.get(f"{url}/v1/traces").json()["message"]
    for content_type in ("text/plain", "application/x-protobuf-other", ""):
        response = post(b"", content_type=content_type)
        assert response.status_code == 415
        assert "application/x-protobuf" in response.json()["message"]
    assert post(b"", content_type="application/protobuf").status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "bare-deflate", "zstd", "gzip members", "zstd frames"])
def test_every_compression_is_read(post: Any, one_span: Any, sink: Any, encoding: str) -> None:
    body = one_span()
    bare = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "bare-deflate": bare.compress(body) + bare.flush(),
        "zstd": zstandard.compress(body),
        "gzip members": gzip.compress(body[:10]) + gzip.compress(body[10:]),
        "zstd frames": zstandard.compress(body[:10]) + zstandard.compress(body[10:]),
    }[encoding]
    header = encoding.removeprefix("bare-").split()[0]
    assert post(packed, content_encoding=header).status_code == 200
    assert len(sink.spans) == 1


@pytest.mark.parametrize("header", ["gzip", "deflate", "zstd"])
def test_truncated_and_corrupt_compression_is_400(post: Any, one_span: Any, sink: Any, header: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstandard.compress}[header]
    packed = pack(one_span(name="n" * 500))
    for body in (packed[:-5], packed[:12], b"not compressed at all", b""):
        response = post(body, content_encoding=header)
        assert response.status_code == 400, body
        assert header in status_of(response).message
    assert sink.accepted == []


def test_an_unknown_compression_is_415(post: Any, one_span: Any) -> None:
    response = post(one_span(), content_encoding="br")
    assert response.status_code == 415
    assert "gzip" in status_of(response).message


def test_size_limits_hold_before_and_after_decompression(post: Any, sink: Any, counters: Counters) -> None:
    plain = post(b"x" * (LIMIT + 1))
    assert plain.status_code == 413
    assert str(LIMIT) in status_of(plain).message
    for header, bomb in (
        ("gzip", gzip.compress(bytes(100_000_000))),
        ("deflate", zlib.compress(bytes(100_000_000))),
        ("zstd", zstandard.compress(bytes(100_000_000))),
        ("gzip", gzip.compress(bytes(LIMIT)) + gzip.compress(b"x")),
    ):
        assert len(bomb) < LIMIT
        assert post(bomb, content_encoding=header).status_code == 413
    assert counters.total("refused", "too_large") == 5
    assert sink.accepted == []


def test_a_body_of_unknown_length_is_counted_as_it_comes(serve_http: Any) -> None:
    url = serve_http(max_body_bytes=1000)

    def chunks() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    response = httpx.post(f"{url}/v1/traces", content=chunks(), headers={"content-type": PROTOBUF})
    assert response.status_code == 413


def test_overload_is_503_with_retry_after(post: Any, one_span: Any, sink: Any, counters: Counters) -> None:
    sink.overloaded = Overloaded(1.5, "the log is full")
    response = post(one_span())
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    status = status_of(response)
    retry = RetryInfo()
    assert status.details[0].Unpack(retry)
    assert (status.code, retry.retry_delay.ToMilliseconds()) == (14, 1500)
    assert counters.snapshot()[CounterKey("refused", "http", "traces", "overloaded")] == 1
    assert post(b'{"resourceLogs":[]}', path="/v1/logs", content_type="application/json").status_code == 200


def test_a_failing_sink_is_500_and_the_next_request_works(post: Any, one_span: Any, sink: Any) -> None:
    sink.overloaded = RuntimeError("boom")
    response = post(one_span())
    assert response.status_code == 500
    assert "boom" not in status_of(response).message
    sink.overloaded = None
    assert post(one_span()).status_code == 200


def test_a_token_is_needed_if_one_is_set(serve_http: Any, one_span: Any, sink: Any) -> None:
    url = serve_http(token="s3cret")
    for headers in ({}, {"authorization": "Bearer other"}):
        response = httpx.post(f"{url}/v1/traces", content=one_span(), headers={"content-type": PROTOBUF} | headers)
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert status_of(response).code == 16
    good = {"content-type": PROTOBUF, "authorization": "Bearer s3cret"}
    assert httpx.post(f"{url}/v1/traces", content=one_span(), headers=good).status_code == 200
    assert len(sink.spans) == 1


def test_a_sender_that_leaves_mid_body_harms_nobody(serve_http: Any, one_span: Any, sink: Any) -> None:
    url = serve_http()
    host, port = url.removeprefix("http://").split(":")
    head = f"POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-type: {PROTOBUF}\r\ncontent-length: 1000\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"part")
    response = httpx.post(f"{url}/v1/traces", content=one_span(), headers={"content-type": PROTOBUF})
    assert response.status_code == 200
    assert len(sink.accepted) == 1


def test_a_taken_port_is_told_at_once(serve_http: Any) -> None:
    port = int(serve_http().rpartition(":")[2])
    from pdtrace.otlp.http_receiver import HttpReceiver

    with pytest.raises(OSError, match=f"127.0.0.1:{port}.*port taken"):
        HttpReceiver(None, port=port)  # type: ignore[arg-type]
