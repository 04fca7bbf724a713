"""The order of assembly is a decision: changing it is changing answers."""

from __future__ import annotations

from pdtrace.assemble.request import STEPS
from pdtrace.dialects import DIALECTS


def test_the_steps_and_their_order() -> None:
    assert [step.__name__ for step in STEPS] == [
        "resolve_roles",
        "place_envelopes",
        "drop_negative",
        "align_clocks",
        "close_open",
        "cut_attempts",
        "name_repeats",
        "cut_abandoned_loads",
        "merge_ranks",
        "settle_waits_for_transfer",
        "note_opaque_workers",
        "open_window",
        "tell_mode",
        "judge",
    ]


def test_the_dialects_and_the_order_they_are_asked_in() -> None:
    assert DIALECTS[0].name == "native"
    assert DIALECTS[-1].name == "generic", "the fallback claims what is left"
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
