"""What a prefill or decode worker does to one request, in an engine's words: stamps and attributes of its stages.

Owns which call begins and ends which stage. A thin layer over a record: each method is one or two appends.

```
P   queue -> wait_for_decode -> prefill -> prefilled, hold, finish ............ release
D   queue ---------------- handoff ---------> queue -> first_step -> first_token ... finish
```
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from pdtrace.instrumentation.record import Record, in_words
from pdtrace.instrumentation.stages import (
    BOOTSTRAP,
    DECODE,
    DECODE_QUEUE,
    FIRST_TOKEN,
    HANDOFF,
    KV_HOLD,
    PREFILL,
    PREFILL_QUEUE,
    RECOMPUTE,
)

log = logging.getLogger(__name__)

#: Who gave P's memory back.
ReleasedBy = Literal["pull", "timeout", "cancel", "eviction"]
HandoffResult = Literal["hit", "partial", "expired", "transport_error", "abandoned"]


@dataclass(frozen=True, slots=True)
class Cached:
    """Prompt tokens that were really found cached, by tier; None = this engine does not tell that tier apart."""

    device: int | None = None
    host: int | None = None
    disk: int | None = None
    external: int | None = None

    @property
    def tokens(self) -> int:
        """All tiers together."""
        return (self.device or 0) + (self.host or 0) + (self.disk or 0) + (self.external or 0)


class _Side:
    """One request on one worker. One thread at a time."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record

    def _compute(self, stage: str, prompt_tokens: int | None, cached: Cached | int | None, at_ns: int | None) -> None:
        record = self.record
        record.next(stage, at_ns)
        if prompt_tokens is not None:
            record.set_stage(stage, "pdtrace.prompt_tokens", prompt_tokens)
        if cached is not None:
            self._found(stage, cached)

    def _found(self, stage: str, cached: Cached | int) -> None:
        put = self.record.set_stage
        if not isinstance(cached, Cached):
            put(stage, "pdtrace.cached_tokens", cached)
            return
        try:
            put(stage, "pdtrace.cached_tokens", cached.tokens)
        except TypeError as problem:  # no numbers; the tiers go out as they are
            log.warning("pdtrace: cached tokens without a sum: %s", problem)
        if cached.device is not None:
            put(stage, "pdtrace.cached_tokens.device", cached.device)
        if cached.host is not None:
            put(stage, "pdtrace.cached_tokens.host", cached.host)
        if cached.disk is not None:
            put(stage, "pdtrace.cached_tokens.disk", cached.disk)
        if cached.external is not None:
            put(stage, "pdtrace.cached_tokens.external", cached.external)


class PrefillSide(_Side):
    """A request on a prefill worker (or the prefill part of an aggregated one).

    Args:
        record: ``recorder.begin(request_id, traceparent=...)``.
    """

    __slots__ = ("_held_bytes", "_hold_ns")

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._hold_ns: int | None = None
        self._held_bytes: int | None = None

    def queue(self, at_ns: int | None = None) -> None:
        """The worker has the request and has not begun; tokenising counts too. Also after a preemption."""
        self.record.next(PREFILL_QUEUE, at_ns)

    def wait_for_decode(self, at_ns: int | None = None) -> None:
        """P could go on, but D has not reserved room for the state or finished the handshake."""
        self.record.next(BOOTSTRAP, at_ns)

    def prefill(
        self, prompt_tokens: int | None = None, cached: Cached | int | None = None, at_ns: int | None = None
    ) -> None:
        """The first forward pass over the prompt begins; all its chunks are one prefill.

        Args:
            prompt_tokens: Tokens of the prompt, the cached ones included.
            cached: Of them, what is not computed because it was found cached.
            at_ns: Stamp; None = now.
        """
        self._compute(PREFILL, prompt_tokens, cached, at_ns)

    def cached(self, cached: Cached | int) -> None:
        """What was found cached, where it is known only after the pass began."""
        self._found(PREFILL, cached)

    def prefilled(self, at_ns: int | None = None) -> None:
        """The last pass over the prompt ended."""
        self.record.end(PREFILL, at_ns)

    def hold(self, held_bytes: int | None = None, at_ns: int | None = None) -> None:
        """From here on P keeps the request's state for D alone."""
        if self.record.recording:
            self._hold_ns = self.record.clock.now_ns() if at_ns is None else at_ns
            self._held_bytes = held_bytes

    def release(self, by: ReleasedBy | Literal[""] = "", at_ns: int | None = None) -> None:
        """P gave the memory back; without a hold it says nothing."""
        start_ns, self._hold_ns = self._hold_ns, None
        if start_ns is None:
            return
        attributes: dict[str, Any] = {}
        if self._held_bytes is not None:
            attributes["pdtrace.hold.bytes"] = self._held_bytes
        if by:
            attributes["pdtrace.hold.released_by"] = by
        record = self.record
        end_ns = record.clock.now_ns() if at_ns is None else at_ns
        if not record.finished:
            record.add(KV_HOLD, start_ns, end_ns, attributes)
            return
        later = record.beside()
        later.add(KV_HOLD, start_ns, end_ns, attributes)
        later.finish(at_ns=end_ns)

    def finish(self, at_ns: int | None = None) -> None:
        """The worker is done with the request, but for memory that it may still hold; a stage that runs ends here.

        Nothing waits for a release, which may be minutes away: it makes a record of its own. A hold that nobody releases
        is not told, because nobody knows how long it was.
        """
        self.record.finish(at_ns=at_ns)


class DecodeSide(_Side):
    """A request on a decode worker (or the decode part of an aggregated one)."""

    __slots__ = ()

    def queue(self, at_ns: int | None = None) -> None:
        """The worker has the request, which waits for blocks or for a place in the batch; tokenising counts too."""
        self.record.next(DECODE_QUEUE, at_ns)

    def prefill(
        self, prompt_tokens: int | None = None, cached: Cached | int | None = None, at_ns: int | None = None
    ) -> None:
        """D computes the prompt itself because no P was used."""
        self._compute(PREFILL, prompt_tokens, cached, at_ns)

    def recompute(
        self, prompt_tokens: int | None = None, cached: Cached | int | None = None, at_ns: int | None = None
    ) -> None:
        """D computes again what P had computed, because the state did not arrive."""
        self._compute(RECOMPUTE, prompt_tokens, cached, at_ns)

    def first_step(self, at_ns: int | None = None) -> None:
        """The state is there: restore, first step and emission of the first token begin."""
        self.record.next(FIRST_TOKEN, at_ns)

    def first_token(self, at_ns: int | None = None) -> None:
        """The first token left D; decoding goes on until the record is finished."""
        self.record.next(DECODE, at_ns)

    def finish(self, at_ns: int | None = None) -> None:
        """The request left this worker."""
        self.record.finish(at_ns=at_ns)


class Handoff:
    """State of one request moving between two workers, as the process that stamps it sees it.

    Each rank, and each chunk of a layer-wise transfer, is one part. Parts may be stamped from transfer threads.

    Args:
        record: The request's record in this process.
        src, dst: Worker ids, as their ``service.instance.id``.
        backend: nixl, mooncake, lmcache, trtllm, ...
        path: nvlink, pcie, rdma, tcp, shared_memory or unknown.
        mode: sequential (D called after P answered), overlapped (both at once) or internal (the backend decides).
        ranks: How many take part.
        lease_ms: How long P keeps the state for D.
    """

    __slots__ = ("_shared", "record")

    def __init__(
        self,
        record: Record,
        *,
        src: str = "",
        dst: str = "",
        backend: str = "",
        path: str = "",
        mode: Literal["", "sequential", "overlapped", "internal"] = "",
        ranks: int | None = None,
        lease_ms: float | None = None,
    ) -> None:
        self.record = record
        given: dict[str, Any] = {
            "pdtrace.handoff.src": src,
            "pdtrace.handoff.dst": dst,
            "pdtrace.handoff.backend": backend,
            "pdtrace.handoff.path": path,
            "pdtrace.handoff.mode": mode,
            "pdtrace.handoff.ranks": ranks,
            "pdtrace.handoff.lease_ms": float(lease_ms) if isinstance(lease_ms, int) else lease_ms,
        }
        self._shared = {name: value for name, value in given.items() if value not in ("", None)}

    def moved(
        self,
        start_ns: int,
        end_ns: int,
        state_bytes: Mapping[str, int] | None = None,
        *,
        rank: int | None = None,
        result: HandoffResult | Literal[""] = "hit",
        attempt: int | None = None,
        failed: str = "",
    ) -> None:
        """One part moved, or failed to.

        Args:
            start_ns, end_ns: Stamps of the recorder's clock.
            state_bytes: Payload by state kind: kv, compressed_kv, swa_window, mamba_state, spec_hidden, ...
            rank: Whose part.
            result: What D got of it; "" = not known here.
            attempt: Of the request, if it is not the record's own.
            failed: What went wrong, in words.
        """
        if not self.record.recording:
            return
        attributes = dict(self._shared)
        if rank is not None:
            attributes["pdtrace.handoff.rank"] = rank
        if result:
            attributes["pdtrace.handoff.result"] = result
        if state_bytes:
            attributes |= _sizes(state_bytes)
        self.record.add(HANDOFF, start_ns, end_ns, attributes, attempt=attempt, failed=failed)

    @contextmanager
    def part(self, rank: int | None = None, *, attempt: int | None = None) -> Iterator[dict[str, int]]:
        """One part as long as the block, which fills in bytes by state kind.

        An exception passes through; the part is then a failed one with result ``transport_error``.
        """
        state_bytes: dict[str, int] = {}
        now = self.record.clock.now_ns
        start_ns = now()
        try:
            yield state_bytes
        except BaseException as problem:
            self.moved(
                start_ns,
                now(),
                state_bytes,
                rank=rank,
                result="transport_error",
                attempt=attempt,
                failed=in_words(problem),
            )
            raise
        self.moved(start_ns, now(), state_bytes, rank=rank, attempt=attempt)


def _sizes(state_bytes: Mapping[str, int]) -> dict[str, Any]:
    """Attributes of what was moved; what are no numbers are left out, with a line in the log."""
    try:
        sizes = [int(size) for size in state_bytes.values()]
        return {
            "pdtrace.handoff.states": [str(kind) for kind in state_bytes],
            "pdtrace.handoff.state_bytes": sizes,
            "pdtrace.handoff.bytes": sum(sizes),
        }
    except Exception as problem:  # noqa: BLE001 - code of the engine's own types; its transfer must go on
        log.warning("pdtrace: bytes of a handoff that are no numbers were left out: %s", in_words(problem))
        return {}
