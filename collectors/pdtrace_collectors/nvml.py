"""NVIDIA GPUs through NVML (package nvidia-ml-py, module pynvml).

Owns the calls and their units. A field that a card does not support is left out, per field; a machine without driver
or card gives nothing. NVLink, PCIe and ECC counters are not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from pdtrace_collectors.contract import Attribute, Kind, Measurement


def load_library() -> ModuleType | None:
    """The module pynvml, or None where nvidia-ml-py is not installed."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml  # type: ignore[no-any-return]


class Nvml:
    """Reads every GPU that NVML shows.

    Args:
        library: the module pynvml, or None where it is not installed.
    """

    name = "nvml"

    def __init__(self, library: ModuleType | None) -> None:
        self._nvml: Any = library
        self._ready = False

    def collect(self) -> list[Measurement]:
        """Utilisation, memory, power, energy, clocks and temperature by GPU; [] without library, driver or GPU.

        Raises:
            pynvml.NVMLError: the driver is there and refuses (e.g. library and kernel module differ in version).
        """
        nvml = self._nvml
        if nvml is None:
            return []
        if not self._ready:
            try:
                nvml.nvmlInit()
            except (nvml.NVMLError_LibraryNotFound, nvml.NVMLError_DriverNotLoaded):
                return []  # no NVIDIA hardware here: asked again next time, a driver may be loaded later
            self._ready = True
        found: list[Measurement] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            found += self._device(index)
        return found

    def _device(self, index: int) -> list[Measurement]:
        nvml = self._nvml
        found: list[Measurement] = []
        hardware_id = f"index:{index}"  # until the card has told its uuid
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            hardware_id = _text(nvml.nvmlDeviceGetUUID(device))
            self._read(device, index, hardware_id, found)
        except nvml.NVMLError as error:
            # One lost card must not hide the others, nor what it had answered before it was lost.
            return [*found, _status(hardware_id, ok=0, error=str(error))]
        return [*found, _status(hardware_id, ok=1)]

    def _read(self, device: object, index: int, uuid: str, found: list[Measurement]) -> None:
        nvml = self._nvml
        gpu: dict[str, Attribute] = {"hw.id": uuid, "hw.type": "gpu", "hw.vendor": "NVIDIA", "hw.name": f"gpu{index}"}
        model = self._ask(nvml.nvmlDeviceGetName, device)
        if model is not None:
            gpu["hw.model"] = _text(model)

        def add(
            name: str, kind: Kind, unit: str, value: float | None, more: dict[str, Attribute] | None = None
        ) -> None:
            if value is not None:
                found.append(Measurement(name, kind, unit, value, gpu | (more or {})))

        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, device)
        if utilization is not None:
            # "A kernel ran during this share of the driver's window", not how much of the GPU it filled.
            add("hw.gpu.utilization", "gauge", "1", utilization.gpu / 100, {"hw.gpu.task": "general"})
            add("pdtrace.gpu.memory.busy", "gauge", "1", utilization.memory / 100)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, device)
        if memory is not None:
            add("hw.gpu.memory.usage", "level", "By", memory.used)
            add("hw.gpu.memory.limit", "level", "By", memory.total)
        add("hw.power", "gauge", "W", _scaled(self._ask(nvml.nvmlDeviceGetPowerUsage, device), 1000))  # from mW
        # From mJ since the driver was loaded: resets when it is reloaded.
        add("hw.energy", "counter", "J", _scaled(self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, device), 1000))
        for clock, domain in (("sm", nvml.NVML_CLOCK_SM), ("memory", nvml.NVML_CLOCK_MEM)):
            mhz = self._ask(nvml.nvmlDeviceGetClockInfo, device, domain)
            add(
                "pdtrace.gpu.clock",
                "gauge",
                "Hz",
                None if mhz is None else mhz * 1_000_000,
                {"pdtrace.gpu.clock": clock},
            )
        degrees = self._ask(nvml.nvmlDeviceGetTemperature, device, nvml.NVML_TEMPERATURE_GPU)
        add("hw.temperature", "gauge", "Cel", degrees)

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None where this card or driver does not support the question."""
        nvml = self._nvml
        try:
            return call(*arguments)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
            return None


def _scaled(value: int | None, divisor: int) -> float | None:
    return None if value is None else value / divisor


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _status(hardware_id: str, *, ok: int, error: str = "") -> Measurement:
    attributes: dict[str, Attribute] = {"hw.id": hardware_id, "hw.type": "gpu", "hw.state": "ok"}
    if error:
        attributes["error.type"] = error
    return Measurement("hw.status", "level", "1", ok, attributes)
