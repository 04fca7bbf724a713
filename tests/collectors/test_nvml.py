"""GPU counters against a fake driver under the real pynvml: values, units, and everything a driver may refuse."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pdtrace_collectors.contract import Measurement, collect_all
from pdtrace_collectors.nvml import Nvml

pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra collectors)")


def _fake_module() -> ModuleType:
    path = Path(__file__).with_name("fake_nvml.py")
    spec = importlib.util.spec_from_file_location("fake_nvml", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = _fake_module()

H200: dict[str, Any] = {
    "UUID": "GPU-11111111-2222-3333-4444-555555555555",
    "Name": "NVIDIA H200",
    "UtilizationRates": {"gpu": 87, "memory": 41},
    "MemoryInfo": {"total": 150_754_820_096, "free": 50_754_820_096, "used": 100_000_000_000},
    "PowerUsage": 612_345,
    "TotalEnergyConsumption": 987_654_321_000,
    "ClockInfo": {str(pynvml.NVML_CLOCK_SM): 1980, str(pynvml.NVML_CLOCK_MEM): 3201},
    "Temperature": 64,
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Installs a fake driver and gives back a collector on it."""

    def install(cards: list[dict[str, Any]], init: int = pynvml.NVML_SUCCESS) -> Nvml:
        monkeypatch.setattr(pynvml, "nvmlLib", fake.FakeDriver(cards, init))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return Nvml(pynvml)

    return install


def values(found: list[Measurement], hardware_id: str | None = None) -> dict[str, float]:
    return {
        m.name + (f"[{m.attributes['pdtrace.gpu.clock']}]" if "pdtrace.gpu.clock" in m.attributes else ""): m.value
        for m in found
        if hardware_id in (None, m.attributes["hw.id"])
    }


def test_values_and_units(driver: Any) -> None:
    found = driver([H200]).collect()
    assert values(found) == {
        "hw.gpu.utilization": 0.87,
        "pdtrace.gpu.memory.busy": 0.41,
        "hw.gpu.memory.usage": 100_000_000_000,
        "hw.gpu.memory.limit": 150_754_820_096,
        "hw.power": 612.345,
        "hw.energy": 987_654_321.0,
        "pdtrace.gpu.clock[sm]": 1_980_000_000,
        "pdtrace.gpu.clock[memory]": 3_201_000_000,
        "hw.temperature": 64,
        "hw.status": 1,
    }
    assert {m.unit for m in found} == {"1", "By", "W", "J", "Hz", "Cel"}
    assert {m.name for m in found if m.kind == "counter"} == {"hw.energy"}
    assert all(m.attributes["hw.id"] == H200["UUID"] for m in found)
    assert found[0].attributes["hw.model"] == "NVIDIA H200"


def test_a_field_that_is_not_supported_is_left_out_alone(driver: Any) -> None:
    card = H200 | {"TotalEnergyConsumption": fake.Error(pynvml.NVML_ERROR_NOT_SUPPORTED)}
    got = values(driver([card]).collect())
    assert "hw.energy" not in got
    assert got["hw.power"] == 612.345


def test_an_old_driver_without_a_function(driver: Any) -> None:
    card = {key: value for key, value in H200.items() if key != "TotalEnergyConsumption"}
    got = values(driver([card]).collect())
    assert "hw.energy" not in got
    assert got["hw.temperature"] == 64


def test_a_lost_card_hides_no_other(driver: Any) -> None:
    lost = H200 | {"UUID": "GPU-lost", "PowerUsage": fake.Error(pynvml.NVML_ERROR_GPU_IS_LOST)}
    found = driver([lost, H200, {"handle": pynvml.NVML_ERROR_GPU_IS_LOST}]).collect()
    assert values(found, "GPU-lost")["hw.status"] == 0
    assert values(found, "GPU-lost")["hw.gpu.utilization"] == 0.87  # answered before it was lost
    assert "hw.power" not in values(found, "GPU-lost")
    assert values(found, H200["UUID"])["hw.power"] == 612.345
    assert values(found, "index:2") == {"hw.status": 0}


def test_no_driver_and_no_library_are_normal(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Nvml(None).collect() == []
    assert driver([], init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED).collect() == []
    assert driver([]).collect() == []
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", _no_such_library)
    assert Nvml(pynvml).collect() == []


def _no_such_library(name: str) -> None:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_broken_driver_is_reported(driver: Any) -> None:
    round_ = collect_all([driver([H200], init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)])
    assert list(round_.failures) == ["nvml"]
    assert "ersion" in round_.failures["nvml"]


def test_a_driver_loaded_later_is_found(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = driver([H200], init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert collector.collect() == []
    monkeypatch.setattr(pynvml, "nvmlLib", fake.FakeDriver([H200]))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert values(collector.collect())["hw.power"] == 612.345
