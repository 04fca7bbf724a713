"""TensorRT-LLM's /perf_metrics entries: which stamps bound which stage, and what was before what."""

import copy
import json
from pathlib import Path

import pytest

from pdtrace.dialects.trtllm import TrtllmDialect
from pdtrace.dialects.trtllm_perf_metrics import KIND, perf_metrics_record
from pdtrace.model import Reading

TRTLLM = TrtllmDialect()
DATA = Path(__file__).parents[4] / "shared" / "data" / "trtllm"
MS = 1_000_000


def entry_of(name):
    if not DATA.is_dir():
        pytest.skip(f"the TensorRT-LLM samples are not beside this checkout: {DATA}")
    (entry,) = json.loads((DATA / name).read_text())
    return entry


def read(entry, server=""):
    out = Reading()
    TRTLLM.read_record(perf_metrics_record(entry, server), out)
    return out


def stages_ms(out):
    return [(a.stage, a.start_ns / MS, a.end_ns / MS) for a in out.activities]


def test_the_readme_sample():
    out = read(entry_of("perf_metrics_readme_sample.json"))
    # proxy    1995 - 2090
    #   route          1995 - 2000
    #   prefill_queue  2003 - 2008  @ctx
    #   prefill        2008 - 2035  @ctx
    #   decode_queue   2052 - 2055  @gen
    #   first_token    2055 - 2083  @gen
    assert stages_ms(out) == [
        ("route", 1995, 2000),
        ("prefill_queue", 2003, 2008),
        ("prefill", 2008, 2035),
        ("decode_queue", 2052, 2055),
        ("first_token", 2055, 2083),
    ]
    (edge,) = out.edges
    assert (edge.kind, edge.start_ns, edge.first_token_ns) == ("router", 1995 * MS, 2090 * MS)
    assert {a.clock for a in out.activities} == {"steady:proxy", "steady:ctx", "steady:gen"}
    assert [w.code for w in out.warnings] == ["may_hold_transfer"]
    assert out.facts["mode"] == "sequential"
    assert TRTLLM.record_keys(perf_metrics_record(entry_of("perf_metrics_readme_sample.json"))) == ()


def test_transfer_stamps_make_a_handoff_inside_the_decode_queue():
    out = read(entry_of("perf_metrics_testvalues_with_kv.json"))
    assert stages_ms(out)[-3:] == [
        ("handoff", 1001310, 1001330),
        ("decode_queue", 1001300, 1001350),
        ("first_token", 1001350, 1001500),
    ]
    assert not out.warnings


def test_edges_run_from_the_proxy_to_ctx_to_gen_and_back():
    out = read(entry_of("perf_metrics_testvalues_with_kv.json"))
    assert [(b.clock_a, b.a_ns / MS, b.clock_b, b.b_ns / MS) for b in out.before] == [
        ("steady:proxy", 999900, "steady:ctx", 1000000),
        ("steady:ctx", 1001000, "steady:gen", 1001200),
        ("steady:ctx", 1000500, "steady:gen", 1001330),
        ("steady:gen", 1001500, "steady:proxy", 1001600),
    ]


def test_an_order_across_hosts_is_stated_as_it_came_and_never_clamped():
    entry = copy.deepcopy(entry_of("perf_metrics_testvalues_with_kv.json"))
    entry["ctx_perf_metrics"]["perf_metrics"]["timing_metrics"]["server_first_token_time"] = 1001.4
    entry["gen_perf_metrics"]["perf_metrics"]["timing_metrics"]["server_arrival_time"] = 1001.3
    edge = read(entry).before[1]
    assert (edge.a_ns - edge.b_ns) / MS == 100


def test_stamps_the_wrong_way_round_in_one_process_are_a_warning_and_no_stage():
    entry = copy.deepcopy(entry_of("perf_metrics_readme_sample.json"))
    entry["ctx_perf_metrics"]["perf_metrics"]["timing_metrics"]["first_scheduled_time"] = 2.001
    out = read(entry)
    assert "prefill_queue" not in {a.stage for a in out.activities}
    assert "inverted_interval" in {w.code for w in out.warnings}


@pytest.mark.parametrize("missing", [-1, 0, None, "nonsense"])
def test_a_missing_stamp_leaves_the_worker_opaque(missing):
    entry = copy.deepcopy(entry_of("perf_metrics_readme_sample.json"))
    for side in ("ctx", "gen"):
        entry[f"{side}_perf_metrics"]["perf_metrics"]["timing_metrics"]["first_scheduled_time"] = missing
    assert [stage for stage, _, _ in stages_ms(read(entry))] == ["route", "prefill_opaque", "decode_opaque"]


def test_without_ctx_the_prompt_ran_on_gen():
    entry = copy.deepcopy(entry_of("perf_metrics_readme_sample.json"))
    del entry["ctx_perf_metrics"]
    out = read(entry)
    assert stages_ms(out) == [("decode_queue", 2052, 2055), ("prefill", 2055, 2080), ("first_token", 2080, 2083)]
    assert out.facts["mode"] == "prefill_on_decode"
    entry["ctx_server"] = "ctx:8001"  # ctx was used and its ring of entries had lost this one
    out = read(entry)
    assert "prefill" not in {a.stage for a in out.activities}
    assert "ctx_metrics_missing" in {w.code for w in out.warnings}


def test_ids_are_global_or_inside_one_ctx_server():
    entry = entry_of("perf_metrics_readme_sample.json") | {"ctx_server": "ctx:8001", "disagg_request_id": 77}
    keys = TRTLLM.record_keys(perf_metrics_record(entry))
    assert [(k.kind, k.value, k.scope) for k in keys] == [
        ("context_id", "77", "trtllm"),
        ("context_id", "3", "trtllm:ctx:8001"),
    ]
    own = {"request_id": 3, "ctx_request_id": 3, "perf_metrics": entry["ctx_perf_metrics"]["perf_metrics"]}
    own["perf_metrics"]["timing_metrics"]["last_token_time"] = 2.035
    assert TRTLLM.record_keys(perf_metrics_record(own, "ctx:8001")) == (keys[1],)
    assert TRTLLM.record_keys(perf_metrics_record(own)) == ()  # which ctx server counted to 3 is not known


def test_both_called_together_is_overlapped_and_gen_does_not_wait_for_ctx():
    entry = copy.deepcopy(entry_of("perf_metrics_testvalues_with_kv.json")) | {"disagg_request_id": 77}
    entry["ctx_perf_metrics"]["ctx_request_id"] = 77
    out = read(entry)
    assert out.facts["mode"] == "overlapped"
    assert "gen is called after ctx answered" not in {b.why for b in out.before}


def test_a_workers_own_entry():
    timing = {"server_arrival_time": 1.0, "arrival_time": 1.01, "first_scheduled_time": 1.02, "first_token_time": 1.05}
    entry = {"request_id": 9, "status": "ok", "perf_metrics": {"timing_metrics": {**timing, "last_token_time": 2.0}}}
    out = read(entry, "agg:8000")
    assert stages_ms(out) == [("prefill_queue", 1010, 1020), ("prefill", 1020, 1050), ("first_token", 1050, 1050)]
    assert (out.facts["mode"], out.facts["prefill_worker"]) == ("aggregated", "agg:8000")
    assert (out.facts["first_token_ns"], out.facts["first_token_clock"]) == (1050 * MS, "steady:agg:8000")
    assert [w.code for w in read(entry | {"ctx_request_id": 3}, "gen:8002").warnings] == ["may_hold_transfer"]


def test_bad_entries_are_refused_with_what_would_be_right():
    with pytest.raises(ValueError, match="disagg_server_arrival_time"):
        perf_metrics_record({"hello": 1})
    out = read({"disagg_server_arrival_time": "x", "ctx_perf_metrics": 5, "gen_perf_metrics": {"perf_metrics": None}})
    assert not (out.edges)
    assert not (out.activities)
    assert not (out.before)


def test_a_record_has_no_wall_clock_and_an_identity_of_its_own():
    entry = entry_of("perf_metrics_readme_sample.json")
    record = perf_metrics_record(entry, "proxy:8000")
    assert (record.kind, record.time_ns) == (KIND, 0)
    assert record.key == perf_metrics_record(entry, "proxy:8000").key
    assert record.key != perf_metrics_record(entry, "proxy:8001").key


def test_a_failed_status_is_a_failure():
    entry = entry_of("perf_metrics_readme_sample.json")
    assert [f.text for f in read(entry | {"status": "failed"}).failures] == ["TensorRT-LLM reports status 'failed'"]
    assert not read(entry | {"status": "completed"}).failures
