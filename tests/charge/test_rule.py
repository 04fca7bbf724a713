"""The charging rule: its listed consequences, as properties over any set of activities."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtrace.charge import Activities, charge
from pdtrace.charge.rule import CODE_OF_STAGE
from pdtrace.stages import ACTIVITY_STAGES, HIDEABLE, STAGES

Drawn = tuple[str, int, int]
CONTAINERS = ("ingress", "relay", "egress")

activity = st.tuples(st.sampled_from(ACTIVITY_STAGES), st.integers(-20, 120), st.integers(0, 60)).map(
    lambda a: (a[0], a[1], a[1] + a[2])
)
activities = st.lists(activity, max_size=14)
windows = st.tuples(st.integers(-5, 40), st.integers(0, 90)).map(lambda w: (w[0], w[0] + w[1]))


def sections(window: tuple[int, int], drawn: Sequence[Drawn]) -> tuple[list[Drawn], dict[str, int], dict[str, int]]:
    """Charge one request: sections, exposed and hidden totals by stage."""
    charged = charge(
        np.array([window[0]]),
        np.array([window[1]]),
        Activities(
            np.array([0, len(drawn)]),
            np.array([CODE_OF_STAGE[d[0]] for d in drawn], dtype=np.int8),
            np.array([d[1] for d in drawn], dtype=np.int64),
            np.array([d[2] for d in drawn], dtype=np.int64),
        ),
    )
    rows = zip(charged.stage.tolist(), charged.start_ns.tolist(), charged.end_ns.tolist(), strict=True)
    return (
        [(STAGES[stage], start, end) for stage, start, end in rows],
        {STAGES[i]: int(v) for i, v in enumerate(charged.exposed_ns[0]) if v},
        {STAGES[i]: int(v) for i, v in enumerate(charged.hidden_ns[0]) if v},
    )


def owners_by_hand(window: tuple[int, int], drawn: Sequence[Drawn]) -> list[str]:
    """The rule word by word, instant by instant (integers, so instants are unit steps)."""
    first_of: list[str | None] = []
    for at in range(*window):
        present = {stage for stage, start, end in drawn if start <= at < end}
        first_of.append(next((stage for stage in ACTIVITY_STAGES if stage in present), None))
    fine = [at for at, stage in enumerate(first_of) if stage not in (None, "container")]
    owners = []
    for at, stage in enumerate(first_of):
        if stage == "container":
            if not fine:
                stage = "unattributed"
            else:
                stage = "ingress" if at < fine[0] else "egress" if at > fine[-1] else "relay"
        owners.append(stage or "unattributed")
    return owners


@given(windows, activities)
def test_every_instant_has_the_owner_that_the_definition_names(window: tuple[int, int], drawn: list[Drawn]) -> None:
    got, _, _ = sections(window, drawn)
    assert [stage for stage, start, end in got for _ in range(end - start)] == owners_by_hand(window, drawn)


@given(windows, activities)
def test_sections_tile_the_window_and_sum_to_it(window: tuple[int, int], drawn: list[Drawn]) -> None:
    got, exposed, _ = sections(window, drawn)
    assert sum(exposed.values()) == window[1] - window[0]
    edges = [window[0], *[end for _, _, end in got]]
    assert [start for _, start, _ in got] == edges[:-1]
    assert edges[-1] == window[1]
    assert all(start < end for _, start, end in got)
    assert all(a[0] != b[0] for a, b in itertools.pairwise(got)), "neighbours of one stage are one section"


@given(windows, activities)
def test_exposed_never_exceeds_the_union_and_hidden_is_the_rest(window: tuple[int, int], drawn: list[Drawn]) -> None:
    _, exposed, hidden = sections(window, drawn)
    for stage in ACTIVITY_STAGES[:11]:
        union = len({at for s, start, end in drawn if s == stage for at in range(start, end) if at in range(*window)})
        assert exposed.get(stage, 0) <= union
        assert hidden.get(stage, 0) == (union - exposed.get(stage, 0) if stage in HIDEABLE else 0)


@given(windows, activities, st.randoms())
def test_order_and_duplicates_change_nothing(window: tuple[int, int], drawn: list[Drawn], random: object) -> None:
    again = [*drawn, *drawn[:3]]
    random.shuffle(again)  # type: ignore[attr-defined]
    assert sections(window, again) == sections(window, drawn)


@given(windows, activities, st.integers(-(10**15), 10**15))
def test_a_constant_added_to_all_stamps_changes_nothing(window: tuple[int, int], drawn: list[Drawn], by: int) -> None:
    moved = [(stage, start + by, end + by) for stage, start, end in drawn]
    got, exposed, hidden = sections((window[0] + by, window[1] + by), moved)
    plain, plain_exposed, plain_hidden = sections(window, drawn)
    assert (exposed, hidden) == (plain_exposed, plain_hidden)
    assert [(stage, start - by, end - by) for stage, start, end in got] == plain


@given(windows, activities, activity)
def test_zero_length_activities_change_nothing(window: tuple[int, int], drawn: list[Drawn], extra: Drawn) -> None:
    assert sections(window, [*drawn, (extra[0], extra[1], extra[1])]) == sections(window, drawn)


def folded(exposed: dict[str, int]) -> dict[str, int]:
    """Stages 1 to 11, and the three container stages taken together."""
    result = {stage: exposed.get(stage, 0) for stage in STAGES[:11]}
    result["containers"] = sum(exposed.get(stage, 0) for stage in CONTAINERS)
    return result


@given(windows, st.lists(activity, min_size=1, max_size=10), st.data())
def test_moving_one_boundary_moves_a_stage_by_no_more(
    window: tuple[int, int], drawn: list[Drawn], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(drawn) - 1))
    by = data.draw(st.integers(-10, 10))
    stage, start, end = drawn[at]
    moved = (stage, start, max(start, end + by)) if data.draw(st.booleans()) else (stage, min(start + by, end), end)
    # A container that holds nothing else is unattributed: keep one finer instant so that it stays a container.
    anchor = ("route", window[0], window[0] + 1)
    before = folded(sections(window, [*drawn, anchor])[1])
    after = folded(sections(window, [*drawn[:at], moved, *drawn[at + 1 :], anchor])[1])
    for name in before:
        assert abs(after[name] - before[name]) <= abs(by)


@given(windows, st.lists(activity, min_size=1, max_size=10), st.data())
def test_removing_an_activity_grows_no_stage_by_more_than_it_was_charged(
    window: tuple[int, int], drawn: list[Drawn], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(drawn) - 1))
    anchor = ("route", window[0], window[0] + 1)
    before = folded(sections(window, [*drawn, anchor])[1])
    after = folded(sections(window, [*drawn[:at], *drawn[at + 1 :], anchor])[1])
    removed = drawn[at][0] if drawn[at][0] != "container" else "containers"
    for name in before:
        assert after[name] - before[name] <= before[removed]


@settings(max_examples=25)
@given(st.lists(st.tuples(windows, activities), min_size=1, max_size=40))
def test_a_batch_answers_as_its_requests_do_alone(batch: list[tuple[tuple[int, int], list[Drawn]]]) -> None:
    flat = [d for _, drawn in batch for d in drawn]
    charged = charge(
        np.array([w[0] for w, _ in batch]),
        np.array([w[1] for w, _ in batch]),
        Activities(
            np.concatenate([[0], np.cumsum([len(drawn) for _, drawn in batch])]).astype(np.int64),
            np.array([CODE_OF_STAGE[d[0]] for d in flat], dtype=np.int8),
            np.array([d[1] for d in flat], dtype=np.int64),
            np.array([d[2] for d in flat], dtype=np.int64),
        ),
    )
    for i, (window, drawn) in enumerate(batch):
        part = slice(charged.offsets[i], charged.offsets[i + 1])
        rows = zip(
            charged.stage[part].tolist(), charged.start_ns[part].tolist(), charged.end_ns[part].tolist(), strict=True
        )
        assert [(STAGES[s], a, b) for s, a, b in rows] == sections(window, drawn)[0]


@given(windows, st.lists(activity, min_size=7, max_size=14))
def test_a_request_too_wide_for_a_block_is_charged_by_the_same_rule(
    window: tuple[int, int], drawn: list[Drawn]
) -> None:
    got, _, _ = sections(window, [(s, start, end) for s, start, end in drawn for _ in range(10)])
    assert [stage for stage, start, end in got for _ in range(end - start)] == owners_by_hand(window, drawn)


@pytest.mark.parametrize("count", [30, 31, 32, 33, 64])
def test_any_number_of_one_stage_at_once_is_that_stage_once(count: int) -> None:
    drawn = [("prefill", at, 1000 - at) for at in range(count)] + [("handoff", 0, 2000)]
    got, exposed, hidden = sections((0, 3000), drawn)
    assert got == [("prefill", 0, 1000), ("handoff", 1000, 2000), ("unattributed", 2000, 3000)]
    assert exposed == {"prefill": 1000, "handoff": 1000, "unattributed": 1000}
    assert hidden == {"handoff": 1000}


@pytest.mark.parametrize("length", [(1 << 57) - 1, 1 << 57, 1 << 62])
def test_a_window_of_years_is_charged_to_the_nanosecond(length: int) -> None:
    drawn = [("container", -5, length), ("prefill", 7, length - 9), ("prefill", 3, 8)]
    got, exposed, _ = sections((0, length), drawn)
    assert got == [("ingress", 0, 3), ("prefill", 3, length - 9), ("egress", length - 9, length)]
    assert exposed == {"ingress": 3, "prefill": length - 12, "egress": 9}


def test_touching_stages_lose_nothing() -> None:
    """prefill 10-50, handoff 50-60, first token 60-100: a strict walk charges 50-60 to the parent."""
    got, _, _ = sections(
        (0, 100), [("container", 0, 100), ("prefill", 10, 50), ("handoff", 50, 60), ("first_token", 60, 100)]
    )
    assert got == [("ingress", 0, 10), ("prefill", 10, 50), ("handoff", 50, 60), ("first_token", 60, 100)]


def test_a_hundred_thousand_activities_are_one_sweep() -> None:
    count = 100_000
    drawn = [("handoff", at * 10, at * 10 + 6) for at in range(count)]
    got, exposed, _ = sections((0, count * 10), [("container", 0, count * 10), *drawn])
    assert exposed == {"handoff": count * 6, "relay": (count - 1) * 4, "egress": 4}
    assert len(got) == 2 * count


def test_a_window_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="ends at 5 ns, before its start at 9 ns"):
        sections((9, 5), [])
