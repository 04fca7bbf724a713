-- Which requests are there? One page of them, in any order.
--
-- Parameters:
--   $since_ns, $until_ns          window start (t0) at or after / before, Unix ns; NULL = no bound
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
--   $search       a request id, alias, trace id or uid, or (4 characters at least) how one begins; NULL = any
--   $order_by     t0, ttft, last, input_tokens, output_tokens or a stage (its charged time)
--   $descending   largest first if true; unknowns come last either way
--   $limit, $offset   rows to give and to skip; $limit NULL = all
-- Columns: one row per request, as table requests, with
--   ttft_claims   list of (name, ttft_ns, measures)
--   warnings      list of (code, text)
-- Units: ns for *_ns, Unix ns for stamps. NULL: unknown; section_*_ns NULL = the stage does not occur.
WITH page AS (
    SELECT
        rowid AS row_id,
        CASE $order_by
            WHEN 't0' THEN t0_ns
            WHEN 'ttft' THEN ttft_ns
            WHEN 'last' THEN last_ns
            WHEN 'input_tokens' THEN input_tokens
            WHEN 'output_tokens' THEN output_tokens
            WHEN 'prefill' THEN section_prefill_ns
            WHEN 'recompute' THEN section_recompute_ns
            WHEN 'handoff' THEN section_handoff_ns
            WHEN 'first_token' THEN section_first_token_ns
            WHEN 'prefill_queue' THEN section_prefill_queue_ns
            WHEN 'bootstrap' THEN section_bootstrap_ns
            WHEN 'prefill_opaque' THEN section_prefill_opaque_ns
            WHEN 'decode_queue' THEN section_decode_queue_ns
            WHEN 'decode_opaque' THEN section_decode_opaque_ns
            WHEN 'router_queue' THEN section_router_queue_ns
            WHEN 'route' THEN section_route_ns
            WHEN 'ingress' THEN section_ingress_ns
            WHEN 'relay' THEN section_relay_ns
            WHEN 'egress' THEN section_egress_ns
            WHEN 'unattributed' THEN section_unattributed_ns
        END AS sort_key
    FROM requests
    WHERE ($since_ns IS NULL OR t0_ns >= $since_ns)
        AND ($until_ns IS NULL OR t0_ns < $until_ns)
        AND ($run IS NULL OR run = $run)
        AND ($model IS NULL OR model = $model)
        AND ($mode IS NULL OR mode = $mode)
        AND ($outcome IS NULL OR outcome = $outcome)
        AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
        AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
        AND ($search IS NULL OR CASE
            WHEN length($search) < 4 THEN
                request_id = $search OR uid = $search OR list_contains(aliases, $search) OR list_contains(trace_ids, $search)
            ELSE
                starts_with(request_id, $search) OR starts_with(uid, $search)
                OR len(list_filter(aliases, lambda name: starts_with(name, $search))) > 0
                OR len(list_filter(trace_ids, lambda id: starts_with(id, $search))) > 0
        END)
    ORDER BY CASE WHEN $descending THEN -sort_key ELSE sort_key END NULLS LAST, uid
    LIMIT $limit OFFSET $offset
)
SELECT
    uid, request_id, aliases, trace_ids, sources, dialects, model, run, outcome, outcome_text, mode, t0_ns, t1_ns, end_ns, last_ns,
    received_ns, clock, ttft_ns, ttft_basis, prefill_worker, decode_worker, input_tokens, output_tokens, cached_tokens,
    attempts, stitched_by, http_status, wasted_ns, wasted_gpu_seconds, span_count,
    COLUMNS('^(section|hidden|saving)_.*_ns$'), saving_unknown, sections_to_end,
    ttft_claims, warnings
FROM requests JOIN page ON requests.rowid = page.row_id
ORDER BY CASE WHEN $descending THEN -sort_key ELSE sort_key END NULLS LAST, requests.uid
