"""A request that cannot be derived: the others are, the failure is counted, told once and shown by doctor."""

from __future__ import annotations

import logging
import time

import pytest

from pdtrace import pipeline as pipeline_module
from pdtrace.model import Request
from pdtrace.otlp.decode import decode
from pdtrace.pipeline import Pipeline
from pdtrace.reader.contract import Filters
from pdtrace.reader.local import LocalReader
from pdtrace.store.duckdb import DuckDBStore
from tests.service.running import vllm_request


def test_one_failing_request_leaves_the_others_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = pipeline_module.derive
    poison = f"{2:032x}"

    def derive(spans: list[object], *arguments: object, **options: object) -> list[Request]:
        if any(span.trace_id == poison for span in spans):  # type: ignore[attr-defined]
            raise ZeroDivisionError("a fault in a dialect")
        return right(spans, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline_module, "derive", derive)
    store = DuckDBStore(":memory:")
    pipeline = Pipeline(store)
    now_ns = time.time_ns()
    for number in (1, 2, 3):
        body = vllm_request(number, now_ns - 3_000_000_000)
        pipeline.add(decode("traces", body, encoding="protobuf", received_ns=now_ns, where="test"))
    with caplog.at_level(logging.ERROR):
        assert pipeline.derive(now_ns) == 2
        assert pipeline.derive(now_ns) == 0, "nothing is dirty any more: a failure is not tried for ever"
        pipeline.resume([poison])
        assert pipeline.derive(now_ns) == 0
    reader = LocalReader(store)
    assert [row["request_id"] for row in reader.requests(Filters())] == ["cmpl-1", "cmpl-3"]
    assert pipeline.failures == 2
    assert len(caplog.records) == 1
    assert poison in caplog.text
    (told,) = reader.doctor()["ingest"]["rejections"]
    assert (told["what"], told["where"], told["count"]) == ("request", "derive", 2)
    assert "a fault in a dialect" in told["reason"]

    monkeypatch.setattr(pipeline_module, "derive", right)
    assert pipeline.rederive(now_ns) == 3, "its telemetry was kept"
    store.close()
