"""What is asked of the cluster: when, how long, which prompts begin alike, who will not wait.

Owns the draws, one independent random stream a concern: changing one leaves the others as they were. Everything about
a request is drawn when it arrives, so nothing that the cluster does later can reshuffle it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

_DATA: Final = Path(__file__).parent / "data"
_SECOND: Final = 1_000_000_000

#: Ids of blocks that belong to one request alone start here; below are shared beginnings.
OWN_BLOCKS: Final = 1 << 44
#: Blocks one request or one shared beginning may have.
_MOST_BLOCKS: Final = 1 << 16

FILES: Final[dict[str, tuple[str, int]]] = {
    "mooncake": ("mooncake_conversation.jsonl", 512),
    "azure": ("azure_conversation.csv", 0),
}
"""Recorded arrivals: file, tokens of one of its prefix hashes (0: it has none)."""


@dataclass(slots=True)
class Arrival:
    """One request as it comes to the front end."""

    number: int
    time_ns: int
    """True time."""
    input_tokens: int
    output_tokens: int
    blocks: list[int]
    """Ids of its full blocks; an id names a block and all before it."""
    patience_ns: int | None
    """The client goes away after this; None: it waits."""
    luck: float
    """0 to 1: what fails for a share of requests fails for those below the share."""
    invalid: bool = False


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal length, cut at both ends."""

    median: float
    spread: float
    """Standard deviation of the logarithm."""
    least: int
    most: int

    def of(self, normal: float) -> int:
        """The length for a standard normal draw."""
        return max(self.least, min(self.most, round(self.median * math.exp(self.spread * normal))))


@dataclass(frozen=True, slots=True)
class Bursts:
    """From the onset on, arrivals come in bursts."""

    every_ns: int = 5 * _SECOND
    length_ns: int = 1 * _SECOND
    factor: float = 5.0
    """Rate inside a burst; outside it is as before."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is asked, as distributions or as a file."""

    rate_per_s: float = 20.0
    own_tokens: Lengths = Lengths(420.0, 0.6, 16, 6000)
    """Prompt tokens after the shared beginning."""
    output_tokens: Lengths = Lengths(100.0, 0.5, 2, 800)
    groups: int = 24
    """Shared beginnings; 0: none."""
    group_tokens: int = 1024
    group_skew: float = 0.0
    """Exponent of Zipf's law over the groups; 0: all alike."""
    cancel_share: float = 0.01
    patience_s: float = 1.5
    """Mean patience of those who cancel."""
    invalid_share: float = 0.003
    bursts: Bursts | None = None
    """After the onset."""
    long_share: float = 0.0
    """After the onset this share of prompts is long."""
    long_tokens: int = 24_000
    rate_step: float = 1.0
    """After the onset the rate is multiplied by this."""
    file: str = ""
    """`mooncake` or `azure`: times, lengths and prefixes of a recording, at ``rate_per_s``; 0 keeps its own rate."""


def stream(seed: int, concern: str) -> Random:
    """Random numbers of one concern; no other concern's draws change them."""
    return Random(f"{seed} {concern}")  # noqa: S311 - not a secret


def arrivals(
    workload: Workload, *, seed: int, requests: int, start_ns: int, onset_ns: int, block_size: int
) -> Iterator[Arrival]:
    """``requests`` arrivals in order of time.

    Args:
        workload: What is asked.
        seed: Same seed, same arrivals.
        requests: How many.
        start_ns: True time of the start.
        onset_ns: True time from which bursts, steps and long prompts set in.
        block_size: Tokens a block.
    """
    asked = _recorded(workload, start_ns, block_size) if workload.file else _drawn(workload, seed, start_ns, onset_ns)
    clients, luck = stream(seed, "clients"), stream(seed, "failures")
    for number, (time_ns, input_tokens, output_tokens, shared) in zip(range(requests), asked, strict=False):
        cancels, patience, invalid = clients.random(), clients.expovariate(1.0), clients.random()
        full = input_tokens // block_size
        if isinstance(shared, int):  # a group's number and its length in tokens, in one
            group, common = divmod(shared, _MOST_BLOCKS)
            common = min(common // block_size, full)
            blocks = list(range(group * _MOST_BLOCKS, group * _MOST_BLOCKS + common))
        else:
            blocks = shared[:full]
        own = OWN_BLOCKS + number * _MOST_BLOCKS
        blocks.extend(range(own, own + full - len(blocks)))
        yield Arrival(
            number,
            time_ns,
            input_tokens,
            output_tokens,
            blocks,
            round(patience * workload.patience_s * 1e9) + 1 if cancels < workload.cancel_share else None,
            luck.random(),
            invalid < workload.invalid_share,
        )


def shared_beginnings(workload: Workload, block_size: int) -> list[list[int]]:
    """Ids of the full blocks of every shared beginning; none for a recording."""
    if workload.file:
        return []
    count = workload.group_tokens // block_size
    return [list(range(group * _MOST_BLOCKS, group * _MOST_BLOCKS + count)) for group in range(workload.groups)]


def mean_rate_per_s(workload: Workload) -> float:
    """Expected arrivals a second before the onset."""
    if workload.rate_per_s or not workload.file:
        return workload.rate_per_s
    rows = _rows(workload.file, 64)
    return (len(rows) - 1) * 1e9 / max(rows[-1][0] - rows[0][0], 1)


def _drawn(
    workload: Workload, seed: int, start_ns: int, onset_ns: int
) -> Iterator[tuple[int, int, int, int | list[int]]]:
    times, lengths, prefixes, long = (stream(seed, c) for c in ("arrivals", "lengths", "prefixes", "long prompts"))
    weights = [1.0 / (rank + 1) ** workload.group_skew for rank in range(workload.groups)]
    cumulative = [sum(weights[: rank + 1]) for rank in range(workload.groups)]
    ranks = range(workload.groups)
    offset_ns = 0.0
    phase = long.random()
    while True:
        # Time passes by expected arrivals, so a changed rate bends the same draws and nothing else.
        offset_ns += _until(times.expovariate(1.0), offset_ns, workload, onset_ns - start_ns)
        time_ns = start_ns + round(offset_ns)
        own = workload.own_tokens.of(lengths.gauss(0.0, 1.0))
        output_tokens = workload.output_tokens.of(lengths.gauss(0.0, 1.0))
        group = prefixes.choices(ranks, cum_weights=cumulative)[0] if workload.groups else -1
        # Long prompts come evenly, from a drawn phase: a short run has its share of them, too.
        phase = (phase + workload.long_share) % 1.0
        if phase < workload.long_share and time_ns >= onset_ns:
            own = workload.long_tokens
        shared: int | list[int] = [] if group < 0 else group * _MOST_BLOCKS + workload.group_tokens
        yield time_ns, own + (workload.group_tokens if workload.groups else 0), output_tokens, shared


def _until(expected: float, offset_ns: float, workload: Workload, onset_ns: int) -> float:
    """Time from ``offset_ns`` until ``expected`` more arrivals are expected."""
    at_ns = offset_ns
    while True:
        factor, end_ns = _rate_factor(at_ns, workload, onset_ns)
        per_ns = workload.rate_per_s * factor / 1e9
        if per_ns * (end_ns - at_ns) >= expected:
            return at_ns + expected / per_ns - offset_ns
        expected -= per_ns * (end_ns - at_ns)
        at_ns = end_ns


def _rate_factor(at_ns: float, workload: Workload, onset_ns: int) -> tuple[float, float]:
    """The rate at a time, as a multiple of the plain one, and until when it stays."""
    if at_ns < onset_ns:
        return 1.0, float(onset_ns)
    bursts = workload.bursts
    if bursts is None:
        return workload.rate_step, math.inf
    turn, into_ns = divmod(at_ns - onset_ns, bursts.every_ns)
    begin_ns = onset_ns + turn * bursts.every_ns
    if into_ns < bursts.length_ns:
        return workload.rate_step * bursts.factor, begin_ns + bursts.length_ns
    return workload.rate_step, begin_ns + bursts.every_ns


def _recorded(workload: Workload, start_ns: int, block_size: int) -> Iterator[tuple[int, int, int, int | list[int]]]:
    """A recording, again and again: the next round begins one mean gap after the last row."""
    rows = _rows(workload.file, block_size)
    length_ns = max(rows[-1][0] - rows[0][0], 1)
    round_ns = length_ns * len(rows) / max(len(rows) - 1, 1)
    stretch = 1.0 if not workload.rate_per_s else len(rows) * 1e9 / (workload.rate_per_s * round_ns)
    for turn in count():
        for time_ns, input_tokens, output_tokens, blocks in rows:
            offset_ns = (time_ns - rows[0][0] + turn * round_ns) * stretch
            yield start_ns + round(offset_ns), input_tokens, output_tokens, blocks


def _rows(name: str, block_size: int) -> list[tuple[int, int, int, list[int]]]:
    """Time in ns, input and output tokens, ids of shared blocks.

    Raises:
        ValueError: No such recording.
    """
    if name not in FILES:
        raise ValueError(f"no recorded arrivals are called {name!r}; there are {', '.join(FILES)}")
    file, hash_tokens = FILES[name]
    lines = (_DATA / file).read_text().splitlines()
    if not hash_tokens:
        return [_azure_row(line) for line in lines[1:]]
    rows = []
    for line in lines:
        row = json.loads(line)
        # One hash stands for several of our blocks; where its size is no multiple of ours the rest is not shared.
        per_hash = hash_tokens // block_size
        blocks = [(1 << 40) + h * _MOST_BLOCKS + i for h in row["hash_ids"] for i in range(per_hash)]
        shared = blocks if hash_tokens % block_size == 0 else []
        rows.append((row["timestamp"] * 1_000_000, row["input_length"], max(1, row["output_length"]), shared))
    return rows


def _azure_row(line: str) -> tuple[int, int, int, list[int]]:
    stamp, context, generated = line.split(",")
    whole, _, fraction = stamp.partition(".")
    seconds = round(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * _SECOND + int(fraction.ljust(9, "0")[:9]), max(1, int(context)), max(1, int(generated)), []
