"""Requests per CPU-second of the charging rule, beside a plain Python sweep of the same requests.

Owns the synthetic requests (eight overlapping activities each) and the peer. Fails if the two disagree. The figure is
the median of several runs; the first of them, in which the process gets its memory from the system, is shown apart.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time

import numpy as np

from pdtrace.charge import Activities, charge
from pdtrace.charge.rule import CODE_OF_STAGE
from pdtrace.stages import ACTIVITY_STAGES, STAGES

_REQUESTS = 200_000
_PEER_REQUESTS = 4_000
_RUNS = 9
_WIDTH = 8
_WINDOW_NS = 1_000_000_000


def requests(count: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray, Activities]:
    """Windows of 1 s with eight activities of any stage, one of them a container over it all."""
    rng = np.random.default_rng(seed)
    t0 = rng.integers(1_796_000_000, 1_796_100_000, count) * 1_000_000_000
    starts = rng.integers(0, _WINDOW_NS, (count, _WIDTH))
    ends = np.minimum(starts + rng.integers(0, _WINDOW_NS // 2, (count, _WIDTH)), _WINDOW_NS)
    stages = rng.integers(0, len(ACTIVITY_STAGES) - 1, (count, _WIDTH))
    stages[:, 0], starts[:, 0], ends[:, 0] = CODE_OF_STAGE["container"], 0, _WINDOW_NS
    offsets = np.arange(0, count * _WIDTH + 1, _WIDTH, dtype=np.int64)
    flat = Activities(
        offsets,
        stages.astype(np.int8).ravel(),
        (starts + t0[:, None]).ravel(),
        (ends + t0[:, None]).ravel(),
    )
    return t0, t0 + _WINDOW_NS, flat


def plain_totals(t0: int, t1: int, activities: list[tuple[int, int, int]]) -> dict[str, int]:
    """Exposed ns by stage of one request, the way one would write it down: cut at every boundary, first stage wins."""
    bounds = sorted({t0, t1, *(min(max(at, t0), t1) for _, start, end in activities for at in (start, end))})
    container = CODE_OF_STAGE["container"]
    pieces = []
    for low, high in itertools.pairwise(bounds):
        running = [stage for stage, start, end in activities if start <= low < end]
        pieces.append((min(running, default=len(STAGES) - 1), high - low))
    fine = [at for at, (stage, _) in enumerate(pieces) if stage < container]
    totals: dict[str, int] = {}
    for at, (stage, length) in enumerate(pieces):
        if stage < container or stage == len(STAGES) - 1:
            name = STAGES[stage]
        elif not fine:
            name = "unattributed"  # a container that holds nothing else
        else:
            name = "ingress" if at < fine[0] else "egress" if at > fine[-1] else "relay"
        totals[name] = totals.get(name, 0) + length
    return totals


def main() -> None:
    """Print one JSON line."""
    t0, t1, activities = requests(_REQUESTS)
    charge(*requests(2_000))  # imports and caches
    runs = []
    for _ in range(_RUNS):
        before = time.process_time()
        charged = charge(t0, t1, activities)
        runs.append(_REQUESTS / (time.process_time() - before))
    ours = statistics.median(runs)

    rows = list(zip(activities.stage.tolist(), activities.start_ns.tolist(), activities.end_ns.tolist(), strict=True))
    windows = list(zip(t0[:_PEER_REQUESTS].tolist(), t1[:_PEER_REQUESTS].tolist(), strict=True))
    before = time.process_time()
    plain = [plain_totals(low, high, rows[at * _WIDTH : (at + 1) * _WIDTH]) for at, (low, high) in enumerate(windows)]
    peer = _PEER_REQUESTS / (time.process_time() - before)
    for at, totals in enumerate(plain):
        exposed = {STAGES[code]: int(ns) for code, ns in enumerate(charged.exposed_ns[at]) if ns}
        if exposed != totals:
            raise SystemExit(f"request {at}: the rule says {exposed}, the plain sweep {totals}")
    print(
        json.dumps(
            {
                "benchmark": "charge rule",
                "value": round(ours),
                "unit": "requests per CPU-second",
                "wanted": 500_000,
                "peer": "plain Python sweep",
                "ratio": round(ours / peer, 1),
                "first_run": round(runs[0]),
                "slowest": round(min(runs)),
                "fastest": round(max(runs)),
            }
        )
    )


if __name__ == "__main__":
    main()
