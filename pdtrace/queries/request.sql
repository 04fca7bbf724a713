-- What happened to this one? Every request that bears an id, in full.
--
-- Parameters:
--   $id   a uid, request id, alias or trace id, exactly
-- Columns: as requests.sql, with offsets (list of clock, reference, low_ns, high_ns, applied_ns) and details: JSON text
--   with sections, activities, evidence and token times (pdtrace/store/details.py). JSON text too: sections_to_end.
-- Units: ns, Unix ns for stamps. NULL: unknown.
WITH found AS (  -- first the rows, then their details: those are long, and would be unpacked for every request
    SELECT rowid AS row_id FROM requests
    WHERE uid = $id OR request_id = $id OR list_contains(aliases, $id) OR list_contains(trace_ids, $id)
)
SELECT
    uid, request_id, aliases, trace_ids, sources, dialects, model, run, outcome, outcome_text, mode, t0_ns, t1_ns, end_ns, last_ns,
    received_ns, clock, ttft_ns, ttft_basis, prefill_worker, decode_worker, input_tokens, output_tokens, cached_tokens,
    attempts, stitched_by, http_status, wasted_ns, wasted_gpu_seconds, span_count,
    COLUMNS('^(section|hidden|saving)_.*_ns$'), saving_unknown, sections_to_end,
    ttft_claims, warnings, offsets, details
FROM requests JOIN found ON requests.rowid = found.row_id
ORDER BY t0_ns, uid
