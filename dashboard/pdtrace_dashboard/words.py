"""Definitions one hover away, in the words of the project's definitions.

Owns sentences only; formulas live where they are computed.
"""

from __future__ import annotations

from typing import Final

TTFT: Final = (
    "TTFT: length of the window from arrival to the first user-visible token, on one clock. "
    "A request without a first token has no TTFT (null, never 0) and its outcome says why."
)
MEAN: Final = (
    "Mean decomposition of a cohort = mean of its requests' sections; it sums to the cohort's mean TTFT. "
    "Percentiles of stages are never stacked."
)
P99_BAND: Final = "p99 decomposition = mean sections of the requests at or above the p99 TTFT. It sums to the mean TTFT of those requests."
PERCENTILE: Final = f"{TTFT} n is the number of requests with a TTFT; below 20 requests a percentile is greyed."
EXPOSED: Final = (
    "exposed(stage) = its sections, the part of the TTFT charged to it. hidden(stage) = union of its activities inside "
    "the window minus exposed. Hidden time is shown beside the bar, never added to it."
)
SAVING: Final = (
    "saving(stage) = how much sooner the first token would come if that stage's work took no time. Exposed says where the "
    "time went; saving says what fixing it buys. Opaque and unattributed have no saving (unknown)."
)
CHARGED: Final = (
    "At every instant of the window exactly one stage is charged: the first in the table of stages among the activities in "
    "progress. Sections are disjoint and tile the window; their integer sum is the TTFT."
)
OFFERED: Final = (
    "Offered: every request that arrived, whatever became of it; without a client file this is a lower bound."
)
FINISHED: Final = "Finished: requests that ended, with any outcome."
IN_FLIGHT: Final = (
    "In flight: first span seen, no end yet, whatever the time range. A request is visible from its first span; "
    "many engines send a span only when it is over."
)
STREAMING: Final = "streaming (has its first token)"
OUTCOME: Final = (
    "Every offered request has exactly one outcome: ok, ok_fallback (answered after a recompute, a retry or a migration), "
    "invalid, rejected, cancelled, timed_out, failed_route, failed_prefill, failed_handoff, failed_decode, failed, "
    "in_flight, unknown. They add up to the requests offered."
)
#: outcome -> the same in running text
OUTCOME_IN_WORDS: Final = {
    "ok_fallback": "answered after a fallback",
    "timed_out": "timed out",
    "failed_route": "failed in routing",
    "failed_prefill": "failed in prefill",
    "failed_handoff": "failed in the handoff",
    "failed_decode": "failed in decode",
    "failed": "failed, stage unknown",
    "in_flight": "in flight",
    "unknown": "unknown end",
}
MODE: Final = (
    "aggregated; sequential (D called after P answered); overlapped (P and D called together); internal (the backend "
    "decides); prefill_on_decode (D computed the prompt, no P was used); unknown."
)
CLAIMS: Final = "Every TTFT that some component reported, with what it really measures and its difference from the TTFT of this page."
CLOCKS: Final = (
    "Stamps are stored as they came. For each pair of clocks the offset is an interval, bounded by what must have happened "
    "before what. A minimal shift that restores causality may be applied to place activities; it is shown here."
)
STITCHED: Final = "How the spans were joined to one request: parent, request_id, room, context_id, trace_id or none."
WASTED: Final = "Time spent on attempts that were thrown away: on the path, but tagged."
BLIND: Final = "What this dialect cannot know from what the engine sends: it is shown as unknown, never guessed."

OF_GROUP: Final[dict[str, str]] = {
    "routing": "front end before the first worker, held in the router, choosing a worker",
    "P queue": "P has it and has not begun; P's own tokenising too",
    "D back-pressure on P": "P is ready but D has not reserved room or finished the handshake",
    "prefill": "forward pass over the prompt (all chunks)",
    "P opaque": "inside a P or aggregated worker that reports nothing finer",
    "relay": "front end or proxy, between two stages (P answered, D not yet called)",
    "handoff": "state moving P to D, exposed part only",
    "D queue": "D has it: waiting for blocks or for a batch slot",
    "recompute": "prompt work done again because state did not arrive",
    "D opaque": "inside a D worker that reports nothing finer",
    "first token": "D, state ready: restore, first step, emission; then on its way to the user",
    "unattributed": "nobody covers it, or only a container that holds nothing else",
}
STAGES: Final = "In pipeline order: " + "; ".join(f"{group}: {text}" for group, text in OF_GROUP.items()) + "."
