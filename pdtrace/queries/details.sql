-- What happened to these? Many requests in full, for exports.
--
-- Parameters:
--   $uids   list of uids, exactly; unknown ones are left out
-- Columns: as request.sql, by window start.
-- Units: ns, Unix ns for stamps. NULL: unknown.
WITH found AS (  -- first the rows, then their details: those are long, and would be unpacked for every request
    SELECT rowid AS row_id FROM requests
    WHERE uid IN (SELECT unnest($uids::VARCHAR[]))
)
SELECT
    uid, request_id, aliases, trace_ids, sources, dialects, model, run, outcome, outcome_text, mode, t0_ns, t1_ns, end_ns, last_ns,
    received_ns, clock, ttft_ns, ttft_basis, prefill_worker, decode_worker, input_tokens, output_tokens, cached_tokens,
    attempts, stitched_by, http_status, wasted_ns, wasted_gpu_seconds, span_count,
    COLUMNS('^(section|hidden|saving)_.*_ns$'), saving_unknown, sections_to_end,
    ttft_claims, warnings, offsets, details
FROM requests JOIN found ON requests.rowid = found.row_id
ORDER BY t0_ns, uid
