-- How did the requests end? One row per outcome that occurs; they add up to the requests offered.
--
-- Parameters:
--   $since_ns, $until_ns   window start (t0) at or after / before, Unix ns; NULL = no bound
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
-- Columns:
--   outcome              of pdtrace/outcomes.py
--   requests             how many
--   wasted_ns            time spent on attempts that were thrown away, ns
--   wasted_gpu_seconds   the same times the GPUs of their workers; NULL = no worker said its GPUs
--   client_seen          true if a client reported any of them (then offered is more than what servers saw)
SELECT
    outcome,
    count(*) AS requests,
    CAST(sum(wasted_ns) AS BIGINT) AS wasted_ns,
    sum(wasted_gpu_seconds) AS wasted_gpu_seconds,
    bool_or(coalesce(ttft_basis = 'client', false)
        OR list_contains(list_transform(ttft_claims, lambda claim: claim.name), 'client')) AS client_seen
FROM requests
WHERE ($since_ns IS NULL OR t0_ns >= $since_ns)
    AND ($until_ns IS NULL OR t0_ns < $until_ns)
    AND ($run IS NULL OR run = $run)
    AND ($model IS NULL OR model = $model)
    AND ($mode IS NULL OR mode = $mode)
    AND ($outcome IS NULL OR outcome = $outcome)
    AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
    AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
GROUP BY outcome
ORDER BY outcome
