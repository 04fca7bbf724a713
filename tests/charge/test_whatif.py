"""What fixing a stage buys: the forward pass over the stage graph."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from pdtrace.charge import is_chain, savings, savings_of_chain
from pdtrace.charge.whatif import MOST_NODES
from tests.charge.test_rule import activities, activity, sections, windows

Drawn = tuple[str, int, int]


def saved(window: tuple[int, int], drawn: list[Drawn]) -> dict[str, int | None]:
    return savings(*window, sections(window, drawn)[0], drawn)


def test_a_transfer_that_streamed_during_prefill_limits_what_prefill_saves() -> None:
    """definitions section 2: saving(prefill) is 55, not its exposed 95."""
    got = saved((0, 120), [("container", 0, 120), ("prefill", 5, 100), ("handoff", 60, 110), ("first_token", 110, 120)])
    assert got == {"ingress": 5, "prefill": 55, "handoff": 10, "first_token": 10}


def test_in_a_plain_chain_every_stage_saves_its_length() -> None:
    got = saved(
        (0, 670), [("prefill", 0, 200), ("handoff", 200, 250), ("decode_queue", 250, 650), ("first_token", 650, 670)]
    )
    assert got == {"prefill": 200, "handoff": 50, "decode_queue": 400, "first_token": 20}


def test_bootstrap_before_prefill_saves_all_of_its_wait() -> None:
    got = saved(
        (0, 4350),
        [("bootstrap", 0, 4000), ("prefill", 4000, 4300), ("handoff", 4300, 4320), ("first_token", 4320, 4350)],
    )
    assert got["bootstrap"] == 4000


def test_a_second_input_of_the_handoff_holds_it_anyway() -> None:
    """D reserves until 90 while P computes until 100: without the prefill the transfer still waits for D."""
    got = saved((0, 130), [("prefill", 0, 100), ("bootstrap", 0, 90), ("handoff", 100, 120), ("first_token", 120, 130)])
    assert got["prefill"] == 10
    assert got["bootstrap"] == 0


def test_a_queue_that_lasts_as_long_as_the_work_beside_it_hides_what_the_work_saves() -> None:
    """D's batch slot frees at 105 whatever P does: a faster prefill buys nothing."""
    drawn = [("prefill", 5, 100), ("decode_queue", 0, 105), ("first_token", 105, 120)]
    assert saved((0, 120), drawn)["prefill"] == 0


def test_relay_between_the_legs_is_worth_its_length() -> None:
    got = saved((0, 900), [("container", 0, 900), ("prefill", 10, 130), ("first_token", 820, 900)])
    assert got == {"ingress": 10, "prefill": 120, "relay": 690, "first_token": 80}


def test_opaque_and_unattributed_time_has_no_saving() -> None:
    got = saved((0, 100), [("prefill_opaque", 10, 60), ("decode_opaque", 60, 90)])
    assert got == {"prefill_opaque": None, "decode_opaque": None, "unattributed": None}


def test_two_choices_of_a_worker_are_two_nodes() -> None:
    """Dynamo routes twice; the second choice comes after P: removing both saves both, and not P between them."""
    drawn = [("container", 0, 50), ("route", 1, 3), ("prefill", 3, 40), ("route", 40, 42), ("first_token", 42, 50)]
    got = saved((0, 50), drawn)
    assert (got["route"], got["prefill"]) == (4, 37)


def test_a_request_with_too_many_runs_says_unknown() -> None:
    drawn = [("handoff", at * 10, at * 10 + 5) for at in range(MOST_NODES + 1)]
    assert saved((0, 10 * MOST_NODES + 5), drawn) == {"handoff": None, "unattributed": None}


@given(windows, st.lists(activity, min_size=1, max_size=5))
def test_where_nothing_is_hidden_the_graph_gives_every_stage_what_is_charged_to_it(
    window: tuple[int, int], drawn: list[Drawn]
) -> None:
    charged, exposed, hidden = sections(window, drawn)
    assume(charged and is_chain(charged, hidden))
    assert list(savings(*window, charged, drawn).items()) == list(savings_of_chain(exposed).items())


def test_hidden_time_or_too_many_runs_are_no_chain() -> None:
    assert not is_chain([("prefill", 0, 100)], {"handoff": 40})
    assert not is_chain([("route", at, at + 1) for at in range(MOST_NODES + 1)], {})
    assert is_chain([("prefill_opaque", 0, 100)], {"route": 5})  # what an opaque visit hides has no node of its own


@given(windows, activities)
def test_no_saving_is_negative_or_longer_than_the_window(window: tuple[int, int], drawn: list[Drawn]) -> None:
    for stage, value in saved(window, drawn).items():
        assert value is None or 0 <= value <= window[1] - window[0], stage
