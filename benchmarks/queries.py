"""CPU time of every named query over a store of synthetic requests (1 million unless said).

Owns the synthetic rows, made by SQL inside DuckDB. Does not test answers (tests/reader) or ingest (benchmarks/run.py).

    python benchmarks/queries.py [--requests N] [--bar SECONDS]

Prints a JSON line a query: the best and the worst CPU seconds (all threads) of three runs; exits 1 if a best is over the bar.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from pdtrace import queries
from pdtrace.reader.cohorts import cohort_parameters
from pdtrace.store.duckdb import DuckDBStore

START_NS = 1_790_000_000 * 10**9
EVERY_NS = 20_000_000  # 50 requests a second: a million is five and a half hours
RUNS = 3

#: Two workers' worth of skew, seven stages, 2 % rejections, a few in flight at the end, one warning in ten.
SYNTHETIC = """
INSERT INTO requests BY NAME
WITH drawn AS (
    SELECT i, $start + i * $every AS t0_ns, i % 50 = 0 AS refused, i > $n - 200 AS open,
        CAST(5e6 * random() AS BIGINT) AS a, CAST(2e9 * pow(random(), 4) AS BIGINT) AS b,
        CAST(1e9 * random() AS BIGINT) AS c, CAST(1e8 * random() AS BIGINT) AS d,
        CAST(5e8 * pow(random(), 3) AS BIGINT) AS e, CAST(2e7 * random() AS BIGINT) AS f
    FROM range(CAST($n AS BIGINT)) AS r(i)
),
timed AS (SELECT *, CASE WHEN NOT refused THEN a + b + c + d + e + f END AS ttft_ns FROM drawn)
SELECT
    md5(i::VARCHAR) AS uid, 'req-' || md5('r' || i) AS request_id, ['chatcmpl-' || i] AS aliases,
    [md5('t' || i)] AS trace_ids, [md5('t' || i), 'record:dynamo.request_trace:' || i] AS sources,
    ['dynamo', 'vllm'] AS dialects, 'model-' || (i % 3) AS model, 'run-' || (i * 4 // $n) AS run,
    CASE WHEN refused THEN 'rejected' WHEN open THEN 'in_flight' WHEN i % 97 = 0 THEN 'ok_fallback' ELSE 'ok' END AS outcome,
    '' AS outcome_text, CASE WHEN i % 5 = 0 THEN 'aggregated' ELSE 'sequential' END AS mode,
    t0_ns, t0_ns + ttft_ns AS t1_ns, CASE WHEN NOT open THEN t0_ns + coalesce(ttft_ns, 0) + 4000000000 END AS end_ns,
    t0_ns + coalesce(ttft_ns, 0) + 4000000000 AS last_ns, t0_ns + 9000000000 AS received_ns, 'host:a' AS clock, ttft_ns,
    'frontend' AS ttft_basis, 'p' || (i % 8) AS prefill_worker, CASE WHEN i % 5 > 0 THEN 'd' || (i % 7) END AS decode_worker,
    1000 + i % 3000 AS input_tokens, 100 + i % 200 AS output_tokens, i % 1000 AS cached_tokens, 1 AS attempts,
    'parent' AS stitched_by, 200 AS http_status, 0 AS wasted_ns, NULL AS wasted_gpu_seconds, 12 AS span_count,
    CASE WHEN refused THEN 'ingress' END AS waiting_in,
    CASE WHEN NOT refused THEN a END AS section_ingress_ns, CASE WHEN NOT refused THEN b END AS section_prefill_queue_ns,
    CASE WHEN NOT refused THEN c END AS section_prefill_ns, CASE WHEN NOT refused THEN d END AS section_handoff_ns,
    CASE WHEN NOT refused THEN e END AS section_decode_queue_ns, CASE WHEN NOT refused THEN f END AS section_first_token_ns,
    d // 2 AS hidden_handoff_ns, c // 2 AS saving_prefill_ns, d AS saving_handoff_ns, []::VARCHAR[] AS saving_unknown,
    CASE WHEN refused THEN '{"ingress":150000000}' END AS sections_to_end,
    CASE WHEN i % 2 = 0 THEN [{'name': 'router', 'ttft_ns': c, 'measures': 'dispatch to token'}] ELSE [] END AS ttft_claims,
    CASE WHEN i % 10 = 0 THEN [{'code': 'no_edge_span', 'text': 'no front end was seen'}] ELSE [] END AS warnings,
    CASE WHEN i % 10 = 0 THEN [{'clock': 'host:' || i % 8, 'reference': 'host:a', 'low_ns': -a, 'high_ns': a,
        'applied_ns': 0}] ELSE [] END AS offsets,
    '{"sections":[' || array_to_string(list_transform(['ingress', 'prefill_queue', 'prefill', 'handoff', 'decode_queue',
        'first_token'], lambda stage: '["' || stage || '",' || t0_ns || ',' || t0_ns + a || ']'), ',')
        || '],"sections_to_end":[],"activities":[],"evidence":[],"token_times_ns":[]}' AS details
FROM timed
"""
SOURCES = """
INSERT INTO request_sources
SELECT uid, t0_ns, md5_number_lower(source), source FROM (SELECT uid, t0_ns, unnest(sources) AS source FROM requests)
"""

ANY = dict.fromkeys(("since_ns", "until_ns", "run", "model", "mode", "outcome", "prefill_worker", "decode_worker"))


def questions(count: int) -> list[tuple[str, str, dict[str, Any]]]:
    """(label, query, parameters) for every query, some of them in several ways."""
    end_ns = START_NS + count * EVERY_NS
    page = ANY | {"search": None, "order_by": "t0", "descending": True, "limit": 100, "offset": 0}
    live = {k: v for k, v in ANY.items() if not k.endswith("_ns")} | {"to_ns": end_ns, "bucket_ns": 5 * 10**9}
    a_uid = "c4ca4238a0b923820dcc509a6f75849b"
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("requests: newest 100", "requests", page),
        ("requests: slowest 100", "requests", page | {"order_by": "ttft"}),
        ("requests: longest handoff", "requests", page | {"order_by": "handoff"}),
        ("requests: of one worker", "requests", page | {"prefill_worker": "p3"}),
        ("requests: search, exact", "requests", page | {"search": "chatcmpl-777"}),
        ("requests: search, prefix", "requests", page | {"search": "req-abc"}),
        ("request by id", "request", {"id": "chatcmpl-777"}),
        ("details of 100", "details", {"uids": [a_uid] * 100}),
        ("sources of one request", "sources_of_request", {"uid": a_uid}),
        ("ledger", "ledger", ANY),
        ("facets", "facets", ANY),
        ("live: 5 min", "live_window", live | {"from_ns": end_ns - 300 * 10**9}),
        ("live: 60 min", "live_window", live | {"from_ns": end_ns - 3600 * 10**9}),
        ("in flight", "in_flight", ANY),
        ("unsettled", "unsettled", {"back_ns": 60 * 10**9}),
    ]
    splits = ([], ["minute"], ["link"], ["model", "mode"], ["prefill_worker", "minute"], ["run", "outcome"])
    for by in splits:
        asked.append((f"ttft by {' + '.join(by) or 'nothing'}", "ttft", ANY | cohort_parameters(by)[0]))
    shortly = ANY | {"since_ns": end_ns - 3600 * 10**9}
    asked.append(("ttft by bucket:5, 60 min", "ttft", shortly | cohort_parameters(["bucket:5"])[0]))
    done = {query for _, query, _ in asked}
    alone = {"limit": None, "since_ns": None}
    for name in queries.names():
        taken = queries.load(name).parameters
        if name not in done and taken <= alone.keys():
            asked.append((name, name, {p: alone[p] for p in taken}))
            done.add(name)
    left_out = set(queries.names()) - done
    if left_out:
        raise SystemExit(f"no question is asked of {', '.join(sorted(left_out))}; add one to benchmarks/queries.py")
    return asked


def measure(count: int) -> list[dict[str, Any]]:
    """One row per question: label, rows, best and worst CPU seconds."""
    store = DuckDBStore(":memory:")
    with store._connection.transaction() as con:
        con.execute(SYNTHETIC, {"n": count, "start": START_NS, "every": EVERY_NS})
        con.execute(SOURCES)
    results = []
    for label, name, parameters in questions(count):
        seconds = []
        for _ in range(RUNS):
            before = time.process_time()
            table = store.query(name, parameters)
            seconds.append(time.process_time() - before)
        results.append({"query": label, "rows": table.num_rows, "best_s": min(seconds), "worst_s": max(seconds)})
    store.close()
    return results


def main() -> int:
    """Print one JSON line a question; 1 if one of them is over the bar."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--bar", type=float, default=0.5, help="CPU seconds that no query may exceed")
    options = parser.parse_args()
    results = measure(options.requests)
    for row in results:
        print(
            json.dumps(
                {
                    "benchmark": f"query, {row['query']}",
                    "value": round(row["best_s"], 4),
                    "unit": "CPU seconds, best",
                    "wanted": options.bar,
                    "smaller_is_better": True,
                    "worst_s": round(row["worst_s"], 4),
                    "rows": row["rows"],
                    "requests": options.requests,
                }
            )
        )
    return 1 if any(row["best_s"] > options.bar for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
