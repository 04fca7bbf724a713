"""An NVML library in Python under the real pynvml: functions write into the ctypes arguments as the driver would."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml


class FakeDriver:
    """``cards`` holds a dict a GPU: question -> answer, or an NVML error code instead of an answer.

    A question that is absent is a function the driver does not have at all.
    """

    def __init__(self, cards: list[dict[str, Any]], init: int = pynvml.NVML_SUCCESS) -> None:
        self._cards = cards
        self._init = init

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == "nvmlInitWithFlags":
            return lambda _flags: self._init
        if name == "nvmlDeviceGetCount_v2":
            return lambda out: self._write(out, len(self._cards))
        if name == "nvmlDeviceGetHandleByIndex_v2":
            return self._handle
        question = name.removeprefix("nvmlDeviceGet")
        if not any(question in card for card in self._cards):
            raise AttributeError(name)
        return lambda handle, *arguments: self._answer(question, handle, arguments)

    def _handle(self, index: ctypes.c_uint, out: Any) -> int:
        number = index.value if hasattr(index, "value") else index
        if "handle" in self._cards[number]:
            return int(self._cards[number]["handle"])
        ctypes.c_void_p.from_buffer(out._obj).value = number + 1
        return pynvml.NVML_SUCCESS

    def _answer(self, question: str, handle: Any, arguments: tuple[Any, ...]) -> int:
        number = ctypes.cast(handle, ctypes.c_void_p).value
        assert number is not None
        answer = self._cards[number - 1].get(question, pynvml.NVML_ERROR_NOT_SUPPORTED)
        if isinstance(answer, Error):
            return answer.code
        if isinstance(answer, str):
            arguments[0].value = answer.encode()
            return pynvml.NVML_SUCCESS
        if isinstance(answer, dict) and not hasattr(arguments[-1]._obj, next(iter(answer))):
            key = arguments[0].value if hasattr(arguments[0], "value") else arguments[0]  # asked for one of several
            answer = answer[str(key)]
        return self._write(arguments[-1], answer)

    @staticmethod
    def _write(out: Any, value: Any) -> int:
        if isinstance(value, dict):
            for name, field in value.items():
                setattr(out._obj, name, field)
        else:
            out._obj.value = value
        return pynvml.NVML_SUCCESS


class Error:
    """An NVML error code given as an answer."""

    def __init__(self, code: int) -> None:
        self.code = code
