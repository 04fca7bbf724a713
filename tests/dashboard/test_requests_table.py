"""The Requests table and its export tell the same, in one zone; unknown is never 0."""

from __future__ import annotations

import csv
import io

from pdtrace.stages import STAGES
from pdtrace_dashboard import requests_table
from tests.dashboard import fake_reader

EVENT_NS = 1_774_744_200 * 1_000_000_000  # 2026-03-29T00:30:00Z
ZONE = "Europe/Berlin"


def exported(rows):
    return list(csv.DictReader(io.StringIO(requests_table.to_csv(rows, ZONE))))


def test_table_and_export_print_one_instant_in_one_zone():
    row = fake_reader.make_request(1, EVENT_NS)
    [shown], [line] = requests_table.table([row], ZONE), exported([row])
    assert shown[f"arrived ({ZONE})"] == line[f"arrived ({ZONE})"] == "2026-03-29 01:30:00.000+01:00"
    assert line["t0_ns"] == str(EVENT_NS)


def test_exported_stages_sum_to_the_ttft_to_the_nanosecond():
    rows = [fake_reader.make_request(n, EVENT_NS) for n in range(1, 20)]
    for line in exported(rows):
        assert sum(int(line[f"{stage}_ns"]) for stage in STAGES) == int(line["ttft_ns"])


def test_a_request_without_a_first_token_has_empty_cells_not_zeros():
    row = fake_reader.make_request(24, EVENT_NS)  # failed in the handoff
    [line], [shown] = exported([row]), requests_table.table([row], ZONE)
    assert line["ttft_ns"] == line["prefill_ns"] == line["cached_tokens"] == ""
    assert shown["TTFT"] == "unknown"
    assert shown["outcome"] == "failed in the handoff"
    assert shown["most in"].startswith("prefill ")  # of the time to its end


def test_an_id_with_commas_and_quotes_stays_one_cell():
    row = fake_reader.make_request(1, EVENT_NS) | {"request_id": 'a,"b"\nc'}
    assert exported([row])[0]["request_id"] == 'a,"b"\nc'


def test_the_largest_group_is_told_with_its_share():
    assert requests_table.most({"decode_queue": 750, "prefill": 250}) == "D queue 75 %"
    assert requests_table.most({}) == "unknown"
