"""Stage colours: complete, in pipeline order, and told apart by colour-blind viewers.

Simulation: Machado, Oliveira, Fernandes 2009, severity 1.0, in linear RGB. Difference: CIEDE2000 (Sharma 2005).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from pdtrace.stages import GROUPS, STAGES
from pdtrace_dashboard.palette import COLOUR_OF_GROUP, ORDER, by_group, group_of

VIEWERS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
#: Neighbours in the stack, and pairs that become neighbours where what is between them is absent in ordinary P/D.
NEIGHBOURS = [
    *itertools.pairwise(ORDER),
    ("routing", "prefill"), ("routing", "P opaque"), ("P queue", "prefill"), ("P queue", "P opaque"),
    ("prefill", "handoff"), ("prefill", "D queue"), ("prefill", "relay"), ("P opaque", "handoff"),
    ("relay", "D queue"), ("handoff", "first token"), ("handoff", "D opaque"), ("handoff", "recompute"),
    ("D queue", "first token"), ("recompute", "first token"), ("D opaque", "unattributed"), ("P opaque", "D opaque"),
]  # fmt: skip


def linear(colour: str) -> np.ndarray:
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = (
        np.array(
            [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
        )
        @ np.clip(rgb, 0, 1)
        / np.array([0.95047, 1, 1.08883])
    )
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def ciede2000(one: np.ndarray, other: np.ndarray) -> float:
    (l1, a1, b1), (l2, a2, b2) = map(float, one), map(float, other)
    c7 = ((math.hypot(a1, b1) + math.hypot(a2, b2)) / 2) ** 7
    g = 1.5 - 0.5 * math.sqrt(c7 / (c7 + 25**7))
    c1, c2 = math.hypot(g * a1, b1), math.hypot(g * a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, g * a1)) % 360, math.degrees(math.atan2(b2, g * a2)) % 360
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    lm, cm = (l1 + l2) / 2, (c1 + c2) / 2
    hm = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2
    t = (
        1 - 0.17 * math.cos(math.radians(hm - 30)) + 0.24 * math.cos(math.radians(2 * hm))
        + 0.32 * math.cos(math.radians(3 * hm + 6)) - 0.2 * math.cos(math.radians(4 * hm - 63))
    )  # fmt: skip
    sl = 1 + 0.015 * (lm - 50) ** 2 / math.sqrt(20 + (lm - 50) ** 2)
    sc, sh = 1 + 0.045 * cm, 1 + 0.015 * cm * t
    rt = -2 * math.sqrt(cm**7 / (cm**7 + 25**7)) * math.sin(math.radians(60 * math.exp(-(((hm - 275) / 25) ** 2))))
    dl, dc, dh = (l2 - l1) / sl, (c2 - c1) / sc, dh / sh
    return math.sqrt(dl**2 + dc**2 + dh**2 + rt * dc * dh)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [  # Sharma, Wu, Dalal 2005, table 1: pairs 1, 7, 17 and 25
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ],
)
def test_the_difference_formula_is_the_published_one(one, other, difference):
    assert ciede2000(np.array(one), np.array(other)) == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize("viewer", VIEWERS)
def test_neighbours_in_the_stack_are_told_apart(viewer):
    seen = {group: lab(VIEWERS[viewer] @ linear(colour)) for group, colour in COLOUR_OF_GROUP.items()}
    close = {
        pair: round(ciede2000(seen[pair[0]], seen[pair[1]]), 1)
        for pair in NEIGHBOURS
        if ciede2000(seen[pair[0]], seen[pair[1]]) < 10
    }
    assert not close


@pytest.mark.parametrize("viewer", VIEWERS)
def test_no_two_groups_look_alike(viewer):
    seen = {group: lab(VIEWERS[viewer] @ linear(colour)) for group, colour in COLOUR_OF_GROUP.items()}
    assert min(ciede2000(seen[a], seen[b]) for a, b in itertools.combinations(ORDER, 2)) > 7


def test_every_group_has_a_colour_and_the_order_is_the_pipeline():
    assert tuple(COLOUR_OF_GROUP) == tuple(GROUPS) == ORDER
    assert len(set(COLOUR_OF_GROUP.values())) == len(ORDER)


def test_every_stage_belongs_to_one_group():
    assert {group_of(stage) for stage in STAGES} == set(ORDER)
    assert group_of("container") == "routing"
    assert group_of("something new") == "unattributed"


def test_grouping_keeps_the_sum_and_the_order():
    sections = {"egress": 5, "first_token": 20, "ingress": 4, "route": 1, "handoff": 0}
    assert by_group(sections) == {"routing": 5, "first token": 25}
    assert list(by_group(sections)) == ["routing", "first token"]
