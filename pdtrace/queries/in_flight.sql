-- What is not finished yet, and where does it wait?
--
-- Parameters:
--   $since_ns, $until_ns   window start (t0) at or after / before, Unix ns; NULL = no bound
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
-- Columns, one row per stage that requests in flight are in:
--   stage       the stage charged last; 'after_first_token' for requests that have had theirs;
--               'unattributed' where nothing is known either
--   requests    how many
--   oldest_ns   earliest window start among them, Unix ns
SELECT
    CASE WHEN t1_ns IS NOT NULL THEN 'after_first_token' ELSE coalesce(waiting_in, 'unattributed') END AS stage,
    count(*) AS requests,
    min(t0_ns) AS oldest_ns
FROM requests
WHERE ($since_ns IS NULL OR t0_ns >= $since_ns)
    AND ($until_ns IS NULL OR t0_ns < $until_ns)
    AND ($run IS NULL OR run = $run)
    AND ($model IS NULL OR model = $model)
    AND ($mode IS NULL OR mode = $mode)
    AND ($outcome IS NULL OR outcome = $outcome)
    AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
    AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
    AND outcome = 'in_flight'
GROUP BY stage
ORDER BY stage
