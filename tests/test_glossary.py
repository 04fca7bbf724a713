"""The glossary's tables against the code they describe."""

from __future__ import annotations

import re
from pathlib import Path

from pdtrace.outcomes import OUTCOMES
from pdtrace.stages import GROUPS, KIND_OF_STAGE

TEXT = (Path(__file__).parents[1] / "docs" / "glossary.md").read_text()


def test_stage_table_is_the_codes_own() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\w+) \| [^|]+ \| ([^|]+) \|$", TEXT, re.MULTILINE)
    group_of = {stage: group for group, stages in GROUPS.items() for stage in stages}
    assert [(int(n), stage, kind, group) for n, stage, kind, group in rows] == [
        (n, stage, kind, group_of[stage]) for n, (stage, kind) in enumerate(KIND_OF_STAGE.items(), start=1)
    ]


def test_every_outcome_is_explained() -> None:
    table = TEXT.partition("## Outcomes")[2]
    assert tuple(re.findall(r"`(\w+)`", table)) == OUTCOMES
