"""Each page against a reader with known rows: what it says, and what it says where there is no answer."""

from __future__ import annotations

import time

import pytest

from pdtrace_dashboard import source
from tests.dashboard import fake_reader

S = 1_000_000_000
#: 2026-03-29T00:30:00Z, the night the clocks of Berlin go forward.
EVENT_NS = 1_774_744_200 * S


def headline(at) -> str:
    """The sentence on top, without Markdown's escapes."""
    return next(m.value for m in at.markdown if m.value.startswith("#### "))[5:].replace("\\", "")


def metrics(at) -> dict[str, str]:
    return {metric.label: metric.value for metric in at.metric}


def text(at) -> str:
    return "\n".join(m.value for m in at.markdown).replace("\\", "")


def test_live_leads_with_failures_in_words(traffic, open_page):
    said = headline(open_page("live", range="5m"))
    assert said.startswith(
        "3.81 % of 394 requests did not succeed (15 failed in the handoff); the oldest of 6 in flight is "
    )
    assert "TTFT p99 is 1,150 ms (n = 379)" in said
    assert len(said) < 230  # about two lines


def test_live_counts_who_waits_where(traffic, open_page):
    shown = metrics(open_page("live", range="5m"))
    assert shown["TTFT p50 (n = 379)"] == "252 ms"
    in_flight = next(label for label in shown if label.startswith("In flight (oldest "))
    assert shown[in_flight] == "6"


def test_live_looks_at_now_whatever_the_time_range(traffic, open_page):
    at = open_page("live", range="absolute", **{"from": "2020-01-01T00:00:00Z", "to": "2020-01-02T00:00:00Z"})
    assert "394 requests" in headline(at)
    assert any("Live looks back 5 min from now whatever the time range" in caption.value for caption in at.caption)


def test_ttft_names_the_worker_behind_the_largest_group(traffic, open_page):
    at = open_page("ttft", range="5m")
    assert headline(at).startswith("TTFT p99 is 1,150 ms, mean ")
    assert "(n = 379)" in headline(at)
    assert "% of the difference is D queue" in headline(at)


def test_a_percentile_of_few_requests_is_greyed(behind, open_page):
    behind(fake_reader.traffic(time.time_ns(), count=10, span_s=60))
    at = open_page("ttft", range="5m")
    assert metrics(at)["TTFT p99 (n = 10, too few)"] == ":gray[1,150 ms]"
    assert "too few for a percentile" in headline(at)


def test_requests_are_searched_by_any_id_and_say_what_they_are_made_of(traffic, open_page):
    at = open_page("requests", range="5m")
    assert headline(at).startswith("400 requests, 100 shown by TTFT, most first; the first took 1,150 ms, ")
    at.text_input(key="requests_search").set_value("req-00123").run()
    assert headline(at).startswith("1 requests, 1 shown")
    assert list(at.dataframe[0].value["request"]) == ["req-00123"]


def test_a_request_proves_its_sections_to_the_nanosecond(traffic, open_page):
    at = open_page("request", id="req-00001")
    assert headline(at) == "First token after 252 ms, 59.5 % of it prefill. Outcome ok, mode sequential."
    assert "Sum of 10 sections **252,000,010 ns**, TTFT **252,000,010 ns**: they agree to the nanosecond." in text(at)
    sections = next(frame.value for frame in at.dataframe if "length (ns)" in frame.value)
    assert sum(int(length.replace(",", "")) for length in sections["length (ns)"]) == 252_000_010
    claims = next(frame.value for frame in at.dataframe if "reported by" in frame.value)
    assert list(claims["difference from this page"]) == ["-77 ms"]


def test_a_request_without_a_first_token_has_no_ttft(traffic, open_page):
    at = open_page("request", id="req-00024")
    assert headline(at).startswith("No first token: outcome failed_handoff (the transfer failed) after ")
    assert "No first token, so no TTFT. Charged to the end: **" in text(at)


def test_health_tells_conflicts_rejections_and_what_to_do(traffic, open_page):
    at = open_page("health")
    assert headline(at) == (
        "1 rejected, 0 in conflict, of 3,600 spans (400 requests); the commonest doubt is may_hold_transfer, on 100 % of requests."
    )
    assert list(next(f.value for f in at.dataframe if "reason" in f.value)["reason"]) == [
        "trace_id is 15 bytes; 16 are right"
    ]
    said = text(at)
    assert "**native**: 400 requests (100 %), 3,600 spans" in said
    assert "- What the engine does inside a forward pass." in said
    assert "No routing decision was seen: start the router with its tracing flag." in said
    assert "compare with the engine's NIXL transfer metrics" in at.table[0].value.iloc[0]["what to do"]


@pytest.mark.parametrize("page", ["live", "ttft", "requests", "request", "health"])
def test_a_service_that_is_down_is_named_with_what_to_start(behind, down, open_page, page):
    behind(down)
    at = open_page(page, id="req-00001")
    assert headline(at) == f"No answer from the pdtrace service at `{source.DEFAULT_URL}`"
    assert "connection refused" in at.error[0].value
    assert "`pdtrace serve`" in text(at)


@pytest.mark.parametrize("page", ["live", "ttft", "requests"])
def test_an_empty_service_says_how_to_send_something(behind, open_page, page):
    behind(fake_reader.FakeReader([], time.time_ns()))
    at = open_page(page)
    assert headline(at) == "No requests yet: nothing has been sent to this service"
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4317" in text(at)


@pytest.mark.parametrize("page", ["live", "ttft", "requests"])
def test_a_filter_that_matches_nothing_is_named(traffic, open_page, page):
    at = open_page(page, range="5m", mode="aggregated")
    assert headline(at) == "No request matches: 400 are stored, none last 5 min with these filters"
    assert "Without the filter **mode = aggregated** there are 400 requests." in text(at)


def test_one_zone_in_filter_table_and_title(behind, open_page):
    rows = [
        fake_reader.make_request(n, EVENT_NS + minutes * 60 * S) for n, minutes in enumerate((-31, 0, 29, 61), start=1)
    ]
    behind(fake_reader.FakeReader(rows, EVENT_NS + 3600 * S))
    typed = {"from": "2026-03-29 01:30", "to": "2026-03-29 03:31"}
    at = open_page("requests", range="absolute", zone="Europe/Berlin", **typed)
    assert sorted(at.dataframe[0].value["arrived (Europe/Berlin)"]) == [
        "2026-03-29 01:30:00.000+01:00", "2026-03-29 01:59:00.000+01:00",
    ]  # fmt: skip
    assert at.query_params["from"] == "2026-03-29T00:30:00Z"
    assert at.query_params["to"] == "2026-03-29T01:31:00Z"


def test_a_switch_of_pages_keeps_every_filter(traffic, open_page):
    at = open_page("requests", range="5m", model="small-moe", zone="Europe/Berlin")
    at.switch_page("screens/request.py").run()
    assert not at.exception
    view = at.session_state["view"]
    assert (view.range, view.model, view.zone) == ("5m", "small-moe", "Europe/Berlin")


def test_text_of_telemetry_is_never_formatting(behind, open_page):
    row = fake_reader.make_request(1, time.time_ns() - 10 * S)
    row["model"], row["warning_list"] = "<b>$x$ [a](b)", [{"code": "c", "text": "*not bold* <script>"}]
    behind(fake_reader.FakeReader([row], time.time_ns()))
    raw = "\n".join(m.value for m in open_page("request", id="req-00001").markdown)
    assert r"\<b\>\$x\$ \[a\](b)" in raw
    assert r"\*not bold\* \<script\>" in raw
