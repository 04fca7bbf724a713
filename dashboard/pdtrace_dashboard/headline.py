"""The one sentence on top of each page: is something wrong, where, in words and numbers.

Owns the sentences and the thresholds behind them; pure functions over the reader's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pdtrace_dashboard.format import FEW, duration, known, share, short
from pdtrace_dashboard.palette import by_group
from pdtrace_dashboard.words import OUTCOME_IN_WORDS

Row = dict[str, Any]

#: Outcomes that are nobody's fault here, or not over yet; everything else is a failure of the service.
NOT_FAILED: Final = frozenset({"ok", "ok_fallback", "invalid", "cancelled", "in_flight", "unknown"})
SLOWER_RATIO: Final = 1.5
FAILED_RATIO: Final = 0.01
STUCK_NS: Final = 30_000_000_000


class Growth(NamedTuple):
    """Mean TTFT of the newest part of a window against the part before it."""

    recent_ns: float
    before_ns: float
    recent_n: int
    before_n: int
    group: str  #: the headline group that grew most
    group_ns: float  #: by how much


def growth(buckets: Sequence[Row], recent_buckets: int = 12) -> Growth | None:
    """Newest ``recent_buckets`` against those before; None below 20 requests on either side.

    Means weigh by request; the difference of mean sections adds up to the difference of mean TTFT.
    """
    halves = []
    for part in (buckets[-recent_buckets:], buckets[:-recent_buckets]):
        n = sum(bucket["first_tokens"] for bucket in part)
        if n < FEW:
            return None
        sums: dict[str, float] = {}
        for bucket in part:
            for stage, mean_ns in (bucket.get("sections") or {}).items():
                sums[stage] = sums.get(stage, 0) + mean_ns * bucket["first_tokens"]
        halves.append((n, by_group({stage: total / n for stage, total in sums.items()})))
    (recent_n, recent), (before_n, before) = halves
    moved = {group: recent.get(group, 0) - before.get(group, 0) for group in recent | before}
    if not moved:
        return None
    group = max(moved, key=lambda name: moved[name])
    return Growth(sum(recent.values()), sum(before.values()), recent_n, before_n, group, moved[group])


#: Headline group -> whose difference tells where it comes from; None: no worker stands behind it.
SIDE_OF_GROUP: Final[dict[str, str]] = {
    "P queue": "prefill_worker",
    "prefill": "prefill_worker",
    "P opaque": "prefill_worker",
    "handoff": "link",
    "D back-pressure on P": "decode_worker",
    "D queue": "decode_worker",
    "recompute": "decode_worker",
    "D opaque": "decode_worker",
    "first token": "decode_worker",
}


def suspect(answer: Row) -> str | None:
    """The group a Live headline is about: the one that grew if TTFT is up, else the largest of the mean."""
    grown = growth(answer["buckets"])
    if grown and _is_slower(grown):
        return grown.group
    return largest(answer["totals"].get("sections") or {})


def largest(sections: Mapping[str, float]) -> str | None:
    """The headline group with most time; None if there is none."""
    groups = by_group(sections)
    return max(groups, key=lambda name: groups[name]) if groups else None


def culprit(rows: Sequence[Row], dimension: str, group: str) -> str:
    """Where a group's time sits, if one worker or link has clearly more of it a request than the others: " on ...".

    Args:
        rows: Reader.ttft by ``dimension``.
        dimension: prefill_worker, decode_worker or link.
        group: the headline group.
    """
    named = [row for row in rows if row.get(dimension) is not None and row["requests"]]
    if len(named) < 2:
        return ""
    of = {id(row): by_group(row["sections"]).get(group, 0.0) for row in named}
    worst = max(named, key=lambda row: of[id(row)])
    others = [row for row in named if row is not worst]
    rest_ns = sum(of[id(row)] * row["requests"] for row in others) / sum(row["requests"] for row in others)
    if worst["requests"] < FEW or of[id(worst)] < SLOWER_RATIO * rest_ns:
        return ""
    return f" on {short(worst[dimension])} ({duration(of[id(worst)])} a request, elsewhere {duration(rest_ns)})"


def live(answer: Row, bucket_s: int, where: str = "") -> str:
    """Failures first, then a stuck request, then growth, else what dominates; ``where`` is said of the suspect group."""
    totals, outcomes, flight = answer["totals"], answer["outcomes"], answer["in_flight"]
    parts = []
    over = sum(count for name, count in outcomes.items() if name != "in_flight")
    failed = {name: count for name, count in outcomes.items() if name not in NOT_FAILED and count}
    if over and sum(failed.values()) / over >= FAILED_RATIO:
        parts.append(f"{share(sum(failed.values()), over)} of {over:,} requests did not succeed ({_worst(failed)})")
    age_ns = oldest_age_ns(answer)
    if age_ns is not None and age_ns >= STUCK_NS:
        parts.append(f"the oldest of {flight['count']:,} in flight is {duration(age_ns)} old")
    grown = growth(answer["buckets"])
    slower = grown is not None and _is_slower(grown)
    brief = where.partition(" (")[0]  # beside worse news the name is enough; TTFT has the comparison
    if grown is not None and slower:
        rise_ns = grown.recent_ns - grown.before_ns
        parts.append(
            f"mean TTFT of the last {12 * bucket_s} s is {duration(grown.recent_ns)}, "
            f"{grown.recent_ns / grown.before_ns:.1f}x the time before; {share(grown.group_ns, rise_ns)} of the growth is {grown.group}{brief if parts else where}"
        )
    if parts:
        if totals["requests"] and not slower:
            parts.append(_in_brief(totals, brief))
        return sentence("; ".join(parts))
    if not totals["requests"]:
        return sentence(f"No first token in this window: {totals['offered']:,} offered, {flight['count']:,} in flight")
    return sentence(f"Nothing stands out: {typical(totals, where)}")


def oldest_age_ns(answer: Row) -> int | None:
    """Age of the oldest request in flight; None if none is open."""
    arrived_ns = answer["in_flight"]["oldest_ns"]
    return None if arrived_ns is None else max(0, answer["now_ns"] - arrived_ns)


def _worst(failed: Mapping[str, int], most: int = 3) -> str:
    """The most frequent ways to fail, in words: "68 rejected, 1 failed in the handoff"."""
    ordered = sorted(failed.items(), key=lambda item: -item[1])
    listed = [f"{count:,} {OUTCOME_IN_WORDS.get(name, name)}" for name, count in ordered[:most]]
    rest = sum(count for _, count in ordered[most:])
    return ", ".join([*listed, f"{rest:,} otherwise"] if rest else listed)


def typical(total: Row, where: str = "") -> str:
    """TTFT of a cohort and the group that holds most of its mean."""
    n = total["requests"]
    groups = by_group(total.get("sections") or {})
    text = f"TTFT p99 is {duration(total['p99_ns'])}, mean {duration(total['mean_ns'])} (n = {n:,}"
    text += ", too few for a percentile)" if n < FEW else ")"
    if groups and total["mean_ns"]:
        top = max(groups, key=lambda name: groups[name])
        text += f"; {share(groups[top], total['mean_ns'])} of the mean is {top}{where}"
    return text


def _in_brief(total: Row, where: str) -> str:
    """``typical`` for a sentence that has worse to tell: no mean, no comparison of workers (TTFT has both)."""
    n = total["requests"]
    text = f"TTFT p99 is {duration(total['p99_ns'])} (n = {n:,}{', too few' if n < FEW else ''})"
    top = largest(total.get("sections") or {})
    if top is None or not total["mean_ns"]:
        return text
    return f"{text}, {share(by_group(total['sections'])[top], total['mean_ns'])} of the mean {top}{where}"


def ttft(total: Row, where: str = "") -> str:
    """The cohort in a sentence, and what sets its slowest percent apart."""
    text = typical(total, where)
    mean, tail = by_group(total.get("sections") or {}), by_group(total.get("p99_sections") or {})
    moved = {group: tail.get(group, 0) - mean.get(group, 0) for group in mean | tail}
    if moved and (total.get("p99_mean_ns") or 0) > total["mean_ns"]:
        group = max(moved, key=lambda name: moved[name])
        gap_ns = total["p99_mean_ns"] - total["mean_ns"]
        text += (
            f". The slowest 1 % ({total['p99_requests']:,}) take {duration(total['p99_mean_ns'])}: "
            f"{share(moved[group], gap_ns)} of the difference is {group}"
        )
    return sentence(text)


def requests(shown: int, found: int, order: str, first: Row | None) -> str:
    """How many, in what order, and what the first one is made of."""
    text = f"{found:,} requests, {shown:,} shown by {order}"
    if first is not None and first.get("ttft_ns") is not None:
        text += f"; the first took {duration(first['ttft_ns'])}{_most(first.get('sections') or {}, first['ttft_ns'])}"
    return sentence(text)


def request(row: Row) -> str:
    """What happened to one request: how long, where most of it went, how it ended."""
    if row.get("ttft_ns") is None:
        waited = row.get("sections_to_end") or {}
        whole = sum(waited.values())
        text = f"No first token: outcome {known(row.get('outcome'))}"
        if row.get("outcome_text"):
            text += f" ({row['outcome_text']})"
        if whole:
            text += f" after {duration(whole)}{_most(waited, whole)}"
        return sentence(text)
    text = f"First token after {duration(row['ttft_ns'])}{_most(row.get('sections') or {}, row['ttft_ns'])}"
    text += f". Outcome {known(row.get('outcome'))}, mode {known(row.get('mode'))}"
    return sentence(text)


def health(answer: Row) -> str:
    """Can the numbers be believed: what came in, what was refused or contradicted, what is in doubt."""
    ingest, found = answer["ingest"], answer["store"].get("requests") or 0
    refused = ingest.get("rejected") or 0
    text = f"{refused:,} rejected" if refused else "Nothing was rejected"
    text += (
        f", {ingest.get('conflicts') or 0:,} in conflict, of {ingest.get('spans') or 0:,} spans ({found:,} requests)"
    )
    worst = max(answer["warnings"], key=lambda row: row["requests"], default=None)
    if worst is None:
        return sentence(f"{text}; no request carries a warning")
    return sentence(f"{text}; the commonest doubt is {worst['code']}, on {share(worst['requests'], found)} of requests")


def sentence(text: str) -> str:
    """First letter up, full stop at the end."""
    return f"{text[0].upper()}{text[1:]}."


def _is_slower(grown: Growth) -> bool:
    return bool(grown.before_ns) and grown.recent_ns / grown.before_ns >= SLOWER_RATIO


def _most(sections: Mapping[str, int], whole_ns: float) -> str:
    groups = by_group(sections)
    if not groups or not whole_ns:
        return ""
    top = max(groups, key=lambda name: groups[name])
    return f", {share(groups[top], whole_ns)} of it {top}"
