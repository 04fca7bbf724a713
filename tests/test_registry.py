"""The registry of native telemetry names against the code that writes and reads them, and against the contract."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from pdtrace.instrumentation import stages
from pdtrace.instrumentation.encode import encode_counters
from pdtrace.instrumentation.engine import Cached, DecodeSide, Handoff, PrefillSide
from pdtrace.instrumentation.router import deciding
from pdtrace.instrumentation.stages import STAGES
from pdtrace.instrumentation.tokens import TokenTimeline
from pdtrace.schemas import schema_text
from pdtrace.stages import ACTIVITY_STAGES
from tests.instrumentation.reading import Span, Worker

ROOT = Path(__file__).parents[1]
SEMCONV = ROOT.parent / "shared" / "semconv.md"
REGISTRY: dict[str, Any] = tomllib.loads(schema_text("registry/native.toml"))
NAMES = {kind: [entry["name"] for entry in REGISTRY[kind]] for kind in ("attributes", "spans", "events", "metrics")}
TYPES = {"string", "int", "double", "bool", "string[]", "int[]", "double[]"}


def native_names(path: Path) -> set[str]:
    """Every whole string literal of the form pdtrace.word... that is not a module's name."""
    tree = ast.parse(path.read_text())
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {word for word in words if re.fullmatch(r"pdtrace\.[a-z][a-z_.]*[a-z]", word)}


def test_entries_are_whole_and_unique() -> None:
    for kind, names in NAMES.items():
        assert len(names) == len(set(names)), kind
    for entry in REGISTRY["attributes"]:
        assert entry["type"] in TYPES, entry
        assert entry["text"]
        assert entry["emitted_by"]
        assert entry["source"]
        known = {*NAMES["spans"], "stage", "span", "resource", "metric", *(f"log {n}" for n in NAMES["events"])}
        assert set(entry["on"]) <= known, entry
        if entry["name"].endswith(("_ns", "_ms")):
            assert entry["unit"] == entry["name"].rpartition("_")[2]
    assert {m["kind"] for m in REGISTRY["metrics"]} == {"gauge", "counter", "level"}


def test_every_stage_has_a_span() -> None:
    stages = {name.removeprefix("pdtrace.") for name in NAMES["spans"]} - {"request", "decode", "kv_hold"}
    assert stages == set(ACTIVITY_STAGES) - {"container"}


@pytest.mark.parametrize("folder", ["pdtrace/instrumentation", "collectors/pdtrace_collectors", "pdtrace/dialects"])
def test_names_in_the_code_are_registered(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("native*.py" if folder.endswith("dialects") else "*.py"))
    assert files
    registered = {name for names in NAMES.values() for name in names}
    for path in files:
        assert native_names(path) - registered == set(), path


def test_what_the_instrumentation_sends_is_registered_with_its_type_and_its_span() -> None:
    entries = {entry["name"]: entry for entry in REGISTRY["attributes"]}
    spans = sent_by_every_helper()
    assert {span.name for span in spans} == {f"pdtrace.{stage}" for stage in STAGES} | {"pdtrace.request"}
    assert {f"pdtrace.{stage}" for stage in STAGES} | {"pdtrace.request"} == set(NAMES["spans"])
    sent: set[str] = set()
    for span in spans:
        where = {span.name, "span", "stage" if span.name != "pdtrace.request" else ""}
        for name, value in span.attributes.items():
            assert where & set(entries[name]["on"]), (span.name, name)
            assert entries[name]["type"] == type_of(value), name
            sent.add(name)
    by_hand = {"pdtrace.busy_ns", "pdtrace.scheduled_start_ns"}  # no helper has them: record.set, record.set_stage
    on_spans = {
        name for name, entry in entries.items() if any(on == "stage" or on in NAMES["spans"] for on in entry["on"])
    }
    assert on_spans - sent == by_hand


def sent_by_every_helper() -> list[Span]:
    """Requests with everything that the instrumentation's helpers can say of them."""
    worker = Worker()
    record = worker.recorder.begin("r1", edge=True)
    with deciding(record) as decision:
        decision.mode, decision.chosen, decision.reason, decision.block_size = "events", "p0", "cheapest", 16
        decision.candidates, decision.overlap_tokens = ["p0"], [8]
        decision.cost = decision.predicted_queue_ms = decision.predicted_prefill_ms = [1]
        decision.predicted_transfer_ms = [0.5]
    for stage in (stages.ROUTER_QUEUE, stages.PREFILL_OPAQUE, stages.DECODE_OPAQUE):
        record.next(stage)
    prefill, decode = PrefillSide(record), DecodeSide(record)
    prefill.queue()
    prefill.wait_for_decode()
    prefill.prefill(100, Cached(device=1, host=2, disk=3, external=4))
    prefill.prefilled()
    prefill.hold(4096)
    Handoff(record, src="p0", dst="d0", backend="nixl", path="rdma", mode="overlapped", ranks=2, lease_ms=30_000).moved(
        record.start_ns, record.start_ns + 5, {"kv": 1, "mamba_state": 2}, rank=0
    )
    prefill.release("pull")
    decode.queue()
    decode.recompute(100, 7)
    decode.first_step()
    decode.first_token()
    record.tokens(2)
    for name, value in {"request.model": "m", "usage.input_tokens": 100, "usage.output_tokens": 2}.items():
        record.set(f"gen_ai.{name}", value)
    record.finish("failed_decode", "out of memory")
    long = worker.recorder.begin("r2", edge=True)
    timeline = TokenTimeline(long, limit=1)
    timeline.step(long.start_ns)
    timeline.step(long.start_ns + 1)
    long.finish("ok")
    return worker.spans()


def type_of(value: Any) -> str:
    """A value's type in the registry's words."""
    if isinstance(value, list):
        return f"{type_of(value[0])}[]"
    return {str: "string", bool: "bool", int: "int", float: "double"}[type(value)]


def test_metrics_of_the_instrumentation_are_registered() -> None:
    (metric,) = [entry for entry in REGISTRY["metrics"] if entry["name"].startswith("pdtrace.instrumentation.")]
    request = ExportMetricsServiceRequest.FromString(encode_counters({"submitted": 1}, 1, 2, {}))
    (sent,) = request.resource_metrics[0].scope_metrics[0].metrics
    assert (sent.name, sent.unit, metric["kind"]) == (metric["name"], metric["unit"], "counter")
    assert sent.sum.data_points[0].attributes[0].key in NAMES["attributes"]


def test_metrics_of_the_collectors_are_registered() -> None:
    pattern = re.compile(r'"((?:hw|system|pdtrace)\.[a-z_.]+)", "(gauge|counter|level)", "([^"]*)"')
    text = "".join(path.read_text() for path in (ROOT / "collectors").rglob("*.py"))
    found = {(name, kind, unit) for name, kind, unit in pattern.findall(text)}
    registered = {(m["name"], m["kind"], m["unit"]) for m in REGISTRY["metrics"]}
    assert len(found) > 5
    assert found <= registered


def test_the_registry_holds_the_whole_contract() -> None:
    if not SEMCONV.exists():
        pytest.skip("the contract's text (shared/semconv.md) is not beside this checkout")
    text = SEMCONV.read_text()
    wanted = set(re.findall(r"`(pdtrace\.[a-z_.]+[a-z])`", text))
    prefix = ""
    for cell in re.findall(r"`([a-z_.]+)`", text):  # `.mode` after `pdtrace.router.stage` means pdtrace.router.mode
        if cell.startswith("."):
            wanted.add(prefix + cell)
        elif cell.startswith("pdtrace."):
            prefix = (
                cell
                if cell == "pdtrace.cached_tokens" or cell.startswith("pdtrace.cached")
                else cell.rpartition(".")[0]
            )
            prefix = "pdtrace.cached_tokens" if prefix.startswith("pdtrace.cached") else prefix
    registered = {name for names in NAMES.values() for name in names}
    assert len(wanted) > 40
    assert {
        name for name in wanted if name not in registered and name not in ("pdtrace.gpu", "pdtrace.instrumentation")
    } == set()
