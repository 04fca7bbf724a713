"""How a story is told: the native contract and three engines' dialects, each with exactly its gaps.

Owns the emitters and the sinks. Does not decide what happens (the engine) or what is right (the truth).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pdtrace.simulate.emit.contract import Emitter, Sink
from pdtrace.simulate.emit.dynamo import DynamoEmitter
from pdtrace.simulate.emit.native import NativeEmitter
from pdtrace.simulate.emit.sglang import SglangEmitter
from pdtrace.simulate.emit.sinks import FileSink, MemorySink, NotDelivered, OtlpSink
from pdtrace.simulate.emit.vllm import VllmEmitter
from pdtrace.simulate.story import ClusterFacts

__all__ = ["DIALECTS", "Emitter", "FileSink", "MemorySink", "NotDelivered", "OtlpSink", "Sink", "make_emitter"]

_EMITTERS: Final[dict[str, Callable[[Sink, ClusterFacts, int], Emitter]]] = {
    "native": NativeEmitter,
    "dynamo": DynamoEmitter,
    "vllm": VllmEmitter,
    "sglang": SglangEmitter,
}
#: Dialects that stories can be told in.
DIALECTS: Final = tuple(_EMITTERS)


def make_emitter(dialect: str, sink: Sink, cluster: ClusterFacts, seed: int) -> Emitter:
    """The emitter of one of DIALECTS.

    Raises:
        ValueError: there is no such dialect.
    """
    if dialect not in _EMITTERS:
        raise ValueError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
    return _EMITTERS[dialect](sink, cluster, seed)
