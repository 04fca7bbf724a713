"""docs/instrumentation.md: every block of code is run, in the order of the page, and what it sends is what it says.

The page's names of the host program (workers, an engine, headers) are made here.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fastapi import FastAPI, Request
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pdtrace.assemble import derive
from pdtrace.cli.proxy import command as proxy_command
from pdtrace.instrumentation import Recorder, recorder, settings
from pdtrace.instrumentation.bridge import BridgedRecorder
from pdtrace.otlp.decode import decode_traces
from tests.instrumentation.reading import Span
from tests.instrumentation.receivers import Http, http_receiver

PAGE = (Path(__file__).parents[2] / "docs" / "instrumentation.md").read_text()
CALLER = "00-0102030405060708090a0b0c0d0e0f10-1112131415161718-01"


@dataclass(frozen=True)
class Block:
    """One indented block and the heading above it."""

    heading: str
    code: str


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    heading, lines = "", []
    for line in [*page.splitlines(), ""]:
        if line.startswith("    "):
            lines.append(line[4:])
        elif lines and not line.strip():
            lines.append("")
        elif lines:
            found.append(Block(heading, "\n".join(lines).strip("\n") + "\n"))
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
    if lines and any(lines):
        found.append(Block(heading, "\n".join(lines).strip("\n") + "\n"))
    return found


class Engine:
    """Does nothing, at once; transfers of ``broken`` fail."""

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def admit(self, request_id: str) -> SimpleNamespace:
        return SimpleNamespace(tokens=1000, on_device=256, on_host=64, kv_bytes=4096)

    def pull(self, request_id: str, rank: int) -> int:
        if self.broken:
            raise ConnectionError("peer reset")
        return 2048

    def __getattr__(self, name: str) -> Any:
        return lambda request_id: None


@dataclass
class Page:
    """The page's names after all of its blocks ran."""

    names: dict[str, Any]
    receiver: Http
    bridged: InMemorySpanExporter
    ran: list[str]
    recorders: list[Recorder]

    def spans(self) -> list[Span]:
        for each in self.recorders:
            assert each.flush()
            assert each.stats().problems == {}
        return self.receiver.spans()

    def requests(self) -> dict[str, Any]:
        self.spans()
        spans = [
            span
            for body in list(self.receiver.taken)
            for span in decode_traces(body, encoding="protobuf", received_ns=2**62, where="").spans
        ]
        return {request.request_id: request for request in derive(spans)}


def is_shell(code: str) -> bool:
    return code.startswith("pdtrace ")


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    patch = pytest.MonkeyPatch()
    with http_receiver() as receiver:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        kept = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        names: dict[str, Any] = {
            "request_id": "first", "headers": {"traceparent": CALLER}, "provider": provider, "app": FastAPI(),
            "Request": Request, "choose": lambda request: "p0", "httpx": httpx,
        }  # fmt: skip
        ran, made = [], []
        for block in blocks(PAGE):
            if is_shell(block.code):
                continue
            code = block.code.replace("http://127.0.0.1:4318", receiver.url)
            exec(compile(code, f"docs/instrumentation.md, {block.heading}", "exec"), names)
            ran.append(block.heading)
            made += [value for value in names.values() if isinstance(value, Recorder) and value not in made]
        yield Page(names, receiver, kept, ran, [*made, recorder.default_recorder()])
        for each in [*made, recorder.default_recorder()]:
            each.shutdown(5)
    patch.undo()
    recorder._default = None


def test_every_section_with_code_was_run(page: Page) -> None:
    assert page.ran == [
        "A record for each request",
        "A router",
        "A P/D engine",
        "A P/D engine",
        "Counters",
        "From the environment",
        "Beside an OpenTelemetry SDK",
        "Middleware",
        "Calls to workers",
    ]


def serve(page: Page, request_id: str, engine: Engine) -> list[str]:
    workers = [
        SimpleNamespace(id=f"p{n}", overlap=lambda _, n=n: 320 - n * 320, cost=lambda _, n=n: 1.0 + n) for n in (0, 1)
    ]

    def stream(worker: str, headers: dict[str, str]) -> Iterator[str]:
        side = page.names["prefill"](request_id, headers["traceparent"], engine)
        page.names["decode"](request_id, headers["traceparent"], engine)
        side.release("pull")
        yield from ("a", "b")

    return list(page.names["answer"](request_id, {}, workers, stream))


def test_router_and_engine_together_are_one_request(page: Page) -> None:
    assert serve(page, "whole", Engine()) == ["a", "b"]
    request = page.requests()["whole"]
    assert (request.outcome, request.mode, request.cached_tokens, request.input_tokens) == (
        "ok",
        "sequential",
        320,
        1000,
    )
    assert (request.prefill_worker, request.decode_worker) == ("p0", "d0")
    assert request.warnings == []
    stages = {activity.stage for activity in request.activities}
    assert stages >= {
        "route", "prefill_queue", "bootstrap", "prefill", "handoff", "decode_queue", "first_token", "decode", "kv_hold"
    }  # fmt: skip
    assert sum(request.section_totals().values()) == request.ttft_ns
    (route,) = [activity for activity in request.activities if activity.stage == "route"]
    assert route.detail["pdtrace.router.chosen"] == "p0"
    assert route.detail["pdtrace.router.overlap_tokens"] == [320, 0]


def test_a_transfer_that_breaks_is_a_fallback(page: Page) -> None:
    serve(page, "broken", Engine(broken=True))
    request = page.requests()["broken"]
    assert request.outcome == "ok_fallback"
    assert {activity.stage for activity in request.activities} >= {"handoff", "recompute"}


def test_a_client_that_leaves_and_a_worker_that_fails(page: Page) -> None:
    def failing(worker: str, headers: dict[str, str]) -> Iterator[str]:
        yield "a"
        raise TimeoutError("no answer")

    workers = [SimpleNamespace(id="p0", overlap=lambda _: 0, cost=lambda _: 1.0)]
    left = page.names["answer"]("left", {}, workers, failing)
    next(left)
    left.close()
    with pytest.raises(TimeoutError):
        list(page.names["answer"]("failed", {}, workers, failing))
    requests = page.requests()
    assert requests["left"].outcome == "cancelled"
    assert (requests["failed"].outcome, requests["failed"].outcome_text) == ("failed", "no answer")


def test_the_first_record_hangs_under_its_caller(page: Page) -> None:
    spans = {span.name: span for span in page.spans() if span.attributes.get("pdtrace.request.id") == "first"}
    assert set(spans) == {"pdtrace.prefill_queue", "pdtrace.prefill"}
    assert {span.parent_id for span in spans.values()} == {CALLER[36:52]}
    assert spans["pdtrace.prefill"].attributes["pdtrace.cached_tokens"] == 480


def test_a_batch_shares_its_stamps(page: Page) -> None:
    first, second = ([at_ns for at_ns, _ in timeline] for timeline in page.names["batch"])
    assert len(first) == 3
    assert first == second


def test_the_middleware_s_route_is_recorded(page: Page) -> None:
    async def ask() -> int:
        transport = httpx.ASGITransport(page.names["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return (await client.post("/v1/chat/completions", json={"model": "tiny"})).status_code

    before = len(page.spans())
    assert asyncio.run(ask()) == 200
    route, request = sorted(page.spans()[before:], key=lambda span: span.name, reverse=True)
    assert (route.name, request.name) == ("pdtrace.route", "pdtrace.request")
    assert route.parent_id == request.span_id


def test_the_bridge_tells_the_provider(page: Page) -> None:
    (bridge,) = [each for each in page.recorders if isinstance(each, BridgedRecorder)]
    bridge.begin("bridged", edge=True).finish("ok")
    assert bridge.flush()
    assert [span.name for span in page.bridged.get_finished_spans()] == ["pdtrace.request"]


def test_the_process_s_recorder_comes_from_the_environment(page: Page) -> None:
    assert recorder.default_recorder().enabled
    page.spans()
    assert any(path == "/v1/logs" for path, _, _ in page.receiver.seen)


def test_shell_lines_have_options_that_exist() -> None:
    lines = [line for block in blocks(PAGE) if is_shell(block.code) for line in block.code.splitlines()]
    assert lines
    for line in lines:
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("pdtrace", "proxy")
        result = CliRunner().invoke(proxy_command, [*arguments, "--help"])
        assert result.exit_code == 0
        context = proxy_command.make_context("proxy", list(arguments))
        assert context.params["upstream"].startswith("http://")


def test_names_of_variables_and_counters_are_those_of_the_code() -> None:
    code = Path(settings.__file__).read_text()
    for name in re.findall(r'_otlp\(environment, "([A-Z]+)"\)', code):
        code += f" OTEL_EXPORTER_OTLP_{name} OTEL_EXPORTER_OTLP_TRACES_{name}"
    variables = set(re.findall(r"`((?:OTEL|PDTRACE)_[A-Z_]+)`", PAGE))
    assert len(variables) >= 8
    assert {variable for variable in variables if variable not in code} == set()
    documented = set(re.findall(r"`(\w+)`", PAGE[PAGE.index("| field |") : PAGE.index("Every ten seconds")]))
    assert documented == set(recorder.Stats.__dataclass_fields__)
