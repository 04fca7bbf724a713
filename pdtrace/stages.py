"""The stages a request can be charged to, in order of precedence, and the headline groups charts use.

Owns the names, kinds and order. Does not own colours (the dashboard) or the rule itself (pdtrace.charge).
"""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["work", "wait", "opaque", "container", "none"]

#: Stage name -> kind. The order IS the precedence of the charging rule: the first stage in progress is charged.
KIND_OF_STAGE: Final[dict[str, Kind]] = {
    "prefill": "work",
    "recompute": "work",
    "handoff": "work",
    "first_token": "work",
    "prefill_queue": "wait",
    "bootstrap": "wait",
    "prefill_opaque": "opaque",
    "decode_queue": "wait",
    "decode_opaque": "opaque",
    "router_queue": "wait",
    "route": "work",
    "ingress": "container",
    "relay": "container",
    "egress": "container",
    "unattributed": "none",
}

STAGES: Final[tuple[str, ...]] = tuple(KIND_OF_STAGE)

#: What an activity may carry: the eleven stages that somebody reports, and ``container`` for front end and proxy
#: spans, which the rule splits into ingress, relay and egress.
CONTAINER: Final = "container"
ACTIVITY_STAGES: Final[tuple[str, ...]] = (*STAGES[:11], CONTAINER)

#: Stages of which hidden time is meaningful: a container or an opaque envelope hides nothing.
HIDEABLE: Final[frozenset[str]] = frozenset(s for s, kind in KIND_OF_STAGE.items() if kind in ("work", "wait"))

#: Headline group -> its stages, in pipeline order (the order of every stack and legend).
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "routing": ("ingress", "router_queue", "route"),
    "P queue": ("prefill_queue",),
    "D back-pressure on P": ("bootstrap",),
    "prefill": ("prefill",),
    "P opaque": ("prefill_opaque",),
    "relay": ("relay",),
    "handoff": ("handoff",),
    "D queue": ("decode_queue",),
    "recompute": ("recompute",),
    "D opaque": ("decode_opaque",),
    "first token": ("first_token", "egress"),
    "unattributed": ("unattributed",),
}
