"""Colours of the headline groups, in pipeline order, and how a stage finds its group.

Owns colours only; names and order come from pdtrace.stages. See docs/adr/0006-stage-colours.md for the choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pdtrace.stages import CONTAINER, GROUPS

#: Every stack and every legend has this order.
ORDER: Final[tuple[str, ...]] = tuple(GROUPS)

COLOUR_OF_GROUP: Final[dict[str, str]] = {
    "routing": "#2F4B73",
    "P queue": "#A0CBE8",
    "D back-pressure on P": "#FFBE7D",
    "prefill": "#2B6CB0",
    "P opaque": "#757575",
    "relay": "#D4A6C8",
    "handoff": "#B07AA1",
    "D queue": "#F28E2B",
    "recompute": "#E0304F",
    "D opaque": "#A9A9A9",
    "first token": "#387C43",
    "unattributed": "#D9D9D9",
}

#: Groups that stand for "not known": drawn with a dashed outline (Vega has no hatching) or hatched (SVG).
UNKNOWN_GROUPS: Final[frozenset[str]] = frozenset({"unattributed"})
OUTLINE: Final = "#6B6B6B"

#: Lines of percentiles; distinct from each other by lightness too.
COLOUR_OF_PERCENTILE: Final[dict[str, str]] = {"p50": "#7FB2E5", "p95": "#2B6CB0", "p99": "#E0304F"}
COLOUR_OF_RATE: Final[dict[str, str]] = {"offered": "#7F7F7F", "finished": "#2B6CB0"}

_GROUP_OF_STAGE: Final[dict[str, str]] = {stage: group for group, stages in GROUPS.items() for stage in stages}


def group_of(stage: str) -> str:
    """Headline group of a stage; a front end or proxy container counts as routing; a stage nobody knows is unattributed."""
    if stage == CONTAINER:
        return "routing"
    return _GROUP_OF_STAGE.get(stage, "unattributed")


def by_group(sections: Mapping[str, int | float]) -> dict[str, float]:
    """Stage -> ns to group -> ns, in pipeline order, groups with nothing left out. The sum does not change."""
    sums: dict[str, float] = {}
    for stage, length_ns in sections.items():
        group = group_of(stage)
        sums[group] = sums.get(group, 0) + length_ns
    return {group: sums[group] for group in ORDER if sums.get(group)}
