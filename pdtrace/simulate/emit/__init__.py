"""How a story is told: the native contract and three engines' dialects, each with exactly its gaps.

Owns the emitters and the sinks. Does not decide what happens (the engine) or what is right (the truth).
"""

from __future__ import annotations

from typing import Final

from pdtrace.simulate.emit.contract import Emitter, Sink
from pdtrace.simulate.emit.sinks import FileSink, MemorySink, NotDelivered, OtlpSink
from pdtrace.simulate.story import ClusterFacts

__all__ = ["DIALECTS", "MODES", "Emitter", "FileSink", "MemorySink", "NotDelivered", "OtlpSink", "Sink", "make_emitter"]

#: Dialects that stories can be told in.
DIALECTS: Final = ("native", "dynamo", "vllm", "sglang")
#: How P and D are called (``Policy.mode`` of a cluster) in the systems that speak them. A story of another mode is told
#: as well as their words allow, but no such system would have lived it.
MODES: Final = {
    "native": ("sequential", "overlapped", "aggregated"),
    "dynamo": ("sequential", "overlapped", "aggregated"),
    "vllm": ("sequential", "aggregated"),
    "sglang": ("overlapped", "aggregated"),
}


def make_emitter(dialect: str, sink: Sink, cluster: ClusterFacts, seed: int) -> Emitter:
    """The emitter of one of DIALECTS, as it is by default.

    Raises:
        ValueError: there is no such dialect.
    """
    if dialect == "native":
        from pdtrace.simulate.emit.native import NativeEmitter

        return NativeEmitter(sink, cluster, seed)
    if dialect == "dynamo":
        from pdtrace.simulate.emit.dynamo import DynamoEmitter

        return DynamoEmitter(sink, cluster, seed)
    if dialect == "vllm":
        from pdtrace.simulate.emit.vllm import VllmEmitter

        return VllmEmitter(sink, cluster, seed)
    if dialect == "sglang":
        from pdtrace.simulate.emit.sglang import SglangEmitter

        return SglangEmitter(sink, cluster, seed)
    raise ValueError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}")
