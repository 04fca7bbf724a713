"""Stages that a process can stamp, as plain names: span ``pdtrace.<stage>`` of the native contract."""

from __future__ import annotations

from typing import Final

ROUTE: Final = "route"
ROUTER_QUEUE: Final = "router_queue"
PREFILL_QUEUE: Final = "prefill_queue"
BOOTSTRAP: Final = "bootstrap"
PREFILL: Final = "prefill"
HANDOFF: Final = "handoff"
DECODE_QUEUE: Final = "decode_queue"
RECOMPUTE: Final = "recompute"
FIRST_TOKEN: Final = "first_token"  # noqa: S105 - a stage, not a secret
PREFILL_OPAQUE: Final = "prefill_opaque"
DECODE_OPAQUE: Final = "decode_opaque"
DECODE: Final = "decode"
KV_HOLD: Final = "kv_hold"

STAGES: Final = (
    ROUTE, ROUTER_QUEUE, PREFILL_QUEUE, BOOTSTRAP, PREFILL, HANDOFF, DECODE_QUEUE, RECOMPUTE, FIRST_TOKEN,
    PREFILL_OPAQUE, DECODE_OPAQUE, DECODE, KV_HOLD,
)  # fmt: skip
