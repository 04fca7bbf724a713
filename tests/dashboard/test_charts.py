"""Chart builders, rows in and Vega-Lite out: what is drawn, in which order, in which unit."""

from __future__ import annotations

import pytest

from pdtrace_dashboard.charts import counts, lanes, legend, row_bar, series, stack
from pdtrace_dashboard.palette import COLOUR_OF_GROUP, ORDER

MS = 1_000_000
S = 1_000 * MS
T0 = 1_774_744_200 * S  # 2026-03-29T00:30:00Z


def cells(spec: dict) -> list[dict]:
    """The rows of a chart with one data set."""
    [rows] = spec["datasets"].values()
    return rows


def stacked(rows, **options):
    return stack.over_time(rows, **{"bucket_s": 5, "zone": "UTC"} | options).to_dict()


def test_a_stack_is_in_pipeline_order_without_gaps_and_ends_at_the_mean():
    spec = stacked(
        [{"bucket": T0, "n": 7, "sections": {"first_token": 20 * MS, "ingress": 5 * MS, "prefill": 95 * MS}}]
    )
    drawn = [(cell["group"], cell["bottom"], cell["top"]) for cell in cells(spec)]
    assert drawn == [("routing", 0, 5), ("prefill", 5, 100), ("first token", 100, 120)]
    assert [cell["n"] for cell in cells(spec)] == [7, 7, 7]


def test_a_bucket_without_a_ttft_keeps_its_place_and_has_no_bar():
    [cell] = cells(stacked([{"bucket": T0, "n": 0, "sections": {}}]))
    assert (cell["bottom"], cell["top"], cell["text"]) == (0, 0, "no TTFT")
    assert cell["end"] - cell["start"] == 5_000


@pytest.mark.parametrize(("mean_ms", "unit", "top"), [(9_999, "ms", 9_999), (12_000, "s", 12)])
def test_the_axis_names_its_unit(mean_ms, unit, top):
    spec = stacked([{"bucket": T0, "n": 1, "sections": {"prefill": mean_ms * MS}}])
    assert spec["encoding"]["y"]["title"] == f"mean TTFT ({unit})"
    assert cells(spec)[0]["top"] == top


def test_chart_times_are_the_views_zone_and_the_axis_prints_it():
    spec = stacked([{"bucket": T0, "n": 1, "sections": {"prefill": MS}}], zone="Europe/Berlin")
    assert spec["encoding"]["x"]["axis"]["title"] == "time, Europe/Berlin (UTC+01:00)"
    assert spec["encoding"]["x"]["scale"]["type"] == "utc"
    assert cells(spec)[0]["when"] == "2026-03-29 01:30:00.000+01:00"
    assert cells(spec)[0]["start"] == T0 // MS


def test_colours_are_the_palette_in_pipeline_order():
    scale = stacked([{"bucket": T0, "n": 1, "sections": {"prefill": MS}}])["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == COLOUR_OF_GROUP
    assert scale["domain"] == list(ORDER)


def test_what_is_unattributed_is_outlined_and_dashed():
    encoding = stacked([{"bucket": T0, "n": 1, "sections": {"unattributed": MS}}])["encoding"]
    for channel, otherwise in (("stroke", "transparent"), ("strokeDash", [1, 0])):
        assert encoding[channel]["condition"]["test"] == {"field": "group", "oneOf": ["unattributed"]}
        assert encoding[channel]["value"] == otherwise


def test_only_data_move_from_one_refresh_to_the_next():
    """A changed spec would be drawn anew and lose the zoom (case streamlit-flicker)."""
    one, two = (
        stacked([{"bucket": T0 + shift, "n": 3, "sections": {"prefill": (90 + shift // S) * MS}}])
        for shift in (0, 5 * S)
    )
    for spec in (one, two):
        spec.pop("datasets")
        spec.pop("data")
        spec.pop("params")  # named after the data by Altair; Streamlit renames them by position
    assert one == two


def test_bars_by_label_keep_the_given_order_and_say_n():
    rows = [
        {"label": "decode-2", "n": 1_234, "sections": {"decode_queue": 900 * MS}},
        {"label": "decode-0", "n": 5, "sections": {"decode_queue": 30 * MS}},
    ]
    spec = stack.by_label(rows).to_dict()
    assert spec["encoding"]["y"]["sort"] == ["decode-2 (n = 1,234)", "decode-0 (n = 5)"]
    assert [cell["length"] for cell in cells(spec)] == [900, 30]


def test_hidden_time_is_beside_the_exposed_and_never_stacked_on_it():
    rows = [
        {"label": "a", "n": 1, "exposed_ns": 10 * MS, "hidden_ns": 40 * MS},
        {"label": "b", "n": 1, "exposed_ns": None, "hidden_ns": None},
    ]
    spec = stack.exposed_and_hidden(rows).to_dict()
    assert [(cell["kind"], cell["length"]) for cell in cells(spec)] == [("exposed", 10), ("hidden", 40)]
    assert spec["encoding"]["yOffset"]["field"] == "kind"
    assert spec["encoding"]["x"]["title"] == "mean handoff per request (ms)"


def test_a_rate_is_a_count_over_the_buckets_seconds():
    spec = series.rates([{"bucket": T0, "offered": 10, "finished": 0}], bucket_s=5, zone="UTC").to_dict()
    assert {cell["series"]: cell["value"] for cell in cells(spec)} == {"offered": 2, "finished": 0}
    assert spec["layer"][0]["encoding"]["y"]["title"] == "requests per second"


def test_an_unknown_percentile_breaks_the_line_and_few_requests_are_pale():
    buckets = [
        {"bucket": T0, "first_tokens": 19, "p50_ns": MS, "p95_ns": 2 * MS, "p99_ns": 3 * MS},
        {"bucket": T0 + 5 * S, "first_tokens": 0, "p50_ns": None, "p95_ns": None, "p99_ns": None},
        {"bucket": T0 + 10 * S, "first_tokens": 20, "p50_ns": MS, "p95_ns": 2 * MS, "p99_ns": 3 * MS},
    ]
    spec = series.percentiles(buckets, zone="UTC").to_dict()
    p99 = [(cell["value"], cell["few"]) for cell in cells(spec) if cell["series"] == "p99"]
    assert p99 == [(3, True), (None, True), (3, False)]
    assert spec["layer"][0]["mark"]["invalid"] == "break-paths-show-domains"


def test_outcomes_that_did_not_occur_have_no_bar_and_failures_are_loud():
    spec = counts.outcomes({"ok": 100, "rejected": 68, "failed_handoff": 0, "cancelled": 4}).to_dict()
    drawn = {cell["name"]: (cell["count"], cell["colour"]) for cell in cells(spec)}
    assert drawn == {"ok": (100, "#387C43"), "rejected": (68, "#E0304F"), "cancelled": (4, "#A9A9A9")}


def test_in_flight_adds_stages_of_a_group_in_pipeline_order():
    spec = counts.in_flight({"decode_queue": 2, "ingress": 1, "route": 3, "after_first_token": 9}).to_dict()
    assert [cell["count"] for cell in cells(spec)] == [4, 2, 9]
    assert [cell["name"] for cell in cells(spec)][:2] == ["routing", "D queue"]


# req 0 - 120: front end 0-120, prefill 5-100 @P, transfer 60-110 @link, first step 110-120 @D (definitions, section 2)
ACTIVITIES = [
    {"stage": stage, "start_ns": T0 + start * MS, "end_ns": T0 + end * MS, "worker": worker, "role": role}
    for stage, start, end, worker, role in (
        ("container", 0, 120, "", ""),
        ("prefill", 5, 100, "P0", "prefill"),
        ("handoff", 60, 110, "P0", "prefill"),
        ("first_token", 110, 120, "D0", "decode"),
    )
]
SECTIONS = [
    [stage, T0 + start * MS, T0 + end * MS]
    for stage, start, end in (("ingress", 0, 5), ("prefill", 5, 100), ("handoff", 100, 110), ("first_token", 110, 120))
]


def timeline(activities=ACTIVITIES, sections=SECTIONS, until_ms=120, t1_ms: int | None = 120):
    t1_ns = None if t1_ms is None else T0 + t1_ms * MS
    return lanes.timeline(activities, sections, t0_ns=T0, until_ns=T0 + until_ms * MS, t1_ns=t1_ns).to_dict()


def bars(spec: dict) -> list[dict]:
    return next(rows for rows in spec["datasets"].values() if rows and "lane" in rows[0])


def test_lanes_and_the_charged_strip_share_one_axis():
    spec = timeline()
    encoding = spec["layer"][0]["encoding"]
    assert encoding["y"]["sort"] == ["front end", "P", "link", "D", lanes.CHARGED]
    assert encoding["x"]["title"] == "since arrival (ms)"
    assert encoding["x"]["scale"]["domain"] == [0, 120]


def test_the_strip_tiles_the_window_while_lanes_overlap():
    charged = [(bar["start"], bar["end"]) for bar in bars(timeline()) if bar["lane"] == lanes.CHARGED]
    assert charged == [(0, 5), (5, 100), (100, 110), (110, 120)]
    link = next(bar for bar in bars(timeline()) if bar["lane"] == "link")
    assert (link["start"], link["end"]) == (60, 110)


def test_overlapping_activities_of_a_lane_get_rows_and_touching_ones_share_one():
    def handoff(start, end):
        return {"stage": "handoff", "start_ns": T0 + start * MS, "end_ns": T0 + end * MS, "role": "prefill"}

    drawn = bars(timeline([handoff(0, 50), handoff(30, 60), handoff(50, 90)], []))
    assert [(bar["lane"], bar["start"]) for bar in drawn] == [("link", 0), ("link", 50), ("link (2)", 30)]


@pytest.mark.parametrize(
    ("stage", "role", "lane"),
    [
        ("route", "", "router"),
        ("bootstrap", "prefill", "P"),
        ("prefill", "aggregated", "P"),
        ("prefill", "decode", "D"),
        ("recompute", "decode", "D"),
        ("decode_queue", "decode", "D"),
    ],
)
def test_prompt_work_is_in_the_lane_of_who_did_it(stage, role, lane):
    assert lanes.lane_of({"stage": stage, "role": role}) == lane


def test_an_open_activity_reaches_the_edge_and_no_first_token_has_no_line():
    waiting = {"stage": "decode_queue", "start_ns": T0 + 10 * MS, "end_ns": 0, "role": "decode", "open": True}
    spec = timeline([waiting], [], until_ms=900_000, t1_ms=None)
    [bar] = bars(spec)
    assert (bar["end"], bar["open"]) == (900, True)  # seconds
    assert len(spec["layer"]) == 1


def test_very_many_activities_are_cut_to_the_longest():
    many = [{"stage": "handoff", "start_ns": T0, "end_ns": T0 + i, "role": ""} for i in range(1, 1_001)]
    drawn = bars(timeline(many, []))
    assert len(drawn) == lanes.MOST_BARS
    assert min(bar["end"] for bar in drawn) * MS == pytest.approx(1_001 - lanes.MOST_BARS)


def test_the_bar_of_a_row_is_to_scale_and_hatches_what_is_unknown():
    svg = row_bar.svg({"prefill": 75, "unattributed": 25}, longest_ns=200)
    width = row_bar.WIDTH
    assert f'width="{width * 75 / 200:.2f}" height="{row_bar.HEIGHT - 6}" fill="{COLOUR_OF_GROUP["prefill"]}"' in svg
    assert f'x="{width * 75 / 200:.2f}" y="3" width="{width * 25 / 200:.2f}"' in svg
    assert svg.count("url(#h)") == 1
    assert row_bar.svg({}, 0).count("<rect x=") == 0


def test_the_legend_has_every_group_in_order_with_its_definition():
    html = legend.html()
    places = [html.index(f"</span> {group}</span>") for group in ORDER]
    assert places == sorted(places)
    assert html.count("title=") == len(ORDER)
