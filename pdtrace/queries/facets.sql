-- What can the filter bar offer? The values that occur among the requests of the other filters.
--
-- Parameters:
--   $since_ns, $until_ns   window start (t0) at or after / before, Unix ns; NULL = no bound
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
-- Columns, one row: models, runs, modes, outcomes, prefill_workers, decode_workers: sorted lists, unknowns left out;
--   first_ns, last_ns: earliest window start and latest stamp, Unix ns, NULL without requests; requests: how many.
SELECT
    coalesce(list_sort(list(DISTINCT model) FILTER (model IS NOT NULL)), []) AS models,
    coalesce(list_sort(list(DISTINCT run) FILTER (run IS NOT NULL)), []) AS runs,
    coalesce(list_sort(list(DISTINCT mode)), []) AS modes,
    coalesce(list_sort(list(DISTINCT outcome)), []) AS outcomes,
    coalesce(list_sort(list(DISTINCT prefill_worker) FILTER (prefill_worker IS NOT NULL)), []) AS prefill_workers,
    coalesce(list_sort(list(DISTINCT decode_worker) FILTER (decode_worker IS NOT NULL)), []) AS decode_workers,
    min(t0_ns) AS first_ns,
    max(last_ns) AS last_ns,
    count(*) AS requests
FROM requests
WHERE ($since_ns IS NULL OR t0_ns >= $since_ns)
    AND ($until_ns IS NULL OR t0_ns < $until_ns)
    AND ($run IS NULL OR run = $run)
    AND ($model IS NULL OR model = $model)
    AND ($mode IS NULL OR mode = $mode)
    AND ($outcome IS NULL OR outcome = $outcome)
    AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
    AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
