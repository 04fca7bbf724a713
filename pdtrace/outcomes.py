"""The outcome ledger's vocabulary: every offered request has exactly one of these.

Owns the names, their order and one line of meaning. Does not decide outcomes (pdtrace.assemble).
"""

from __future__ import annotations

from typing import Final

#: Outcome -> what it says, in the order of every ledger. Source: definitions, section 4.
MEANING_OF_OUTCOME: Final[dict[str, str]] = {
    "ok": "answered",
    "ok_fallback": "answered, after a recompute, a retry or a migration",
    "invalid": "the caller's fault: HTTP 400, 404, 413, 422, or an over-long prompt refused inside a 200 stream",
    "rejected": "refused for load: HTTP 429, 503 or 529",
    "cancelled": "the client went away, or the request was cancelled, before the answer was complete",
    "timed_out": "a time limit ended it",
    "failed_route": "failed while a worker was being chosen",
    "failed_prefill": "failed in the prefill",
    "failed_handoff": "failed while state moved from prefill to decode",
    "failed_decode": "failed on the decode worker",
    "failed": "failed; the stage is not known",
    "in_flight": "not finished yet",
    "unknown": "still open past the quiet time or at the end of a file: nobody said how it ended",
}

OUTCOMES: Final[tuple[str, ...]] = tuple(MEANING_OF_OUTCOME)
