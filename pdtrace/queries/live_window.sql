-- Is the system healthy now? Rates, TTFT and its mean decomposition, per time bucket and over the whole window.
--
-- Parameters:
--   $from_ns, $to_ns   the window, Unix ns: at or after / before
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
--   $bucket_ns   length of a bucket; buckets start at multiples of it
-- Columns, one row per bucket that has anything, and one with bucket NULL for the whole window:
--   offered              requests whose window started in it (t0)
--   first_tokens         requests whose first token fell in it (t1); all columns below are about these
--   finished             requests that ended in it
--   p50_ns, p95_ns, p99_ns, mean_ns, section_<stage>_ns (mean)   ns; NULL = no first token, or no such stage
WITH fits AS (
    SELECT t0_ns, t1_ns, end_ns, ttft_ns, COLUMNS('^section_.*_ns$')
    FROM requests
    WHERE ($run IS NULL OR run = $run)
        AND ($model IS NULL OR model = $model)
        AND ($mode IS NULL OR mode = $mode)
        AND ($outcome IS NULL OR outcome = $outcome)
        AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
        AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
),
event AS (
    SELECT t0_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT AS bucket, 'offered' AS what, * FROM fits
    WHERE t0_ns >= $from_ns AND t0_ns < $to_ns
    UNION ALL
    SELECT end_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT, 'finished', * FROM fits
    WHERE end_ns >= $from_ns AND end_ns < $to_ns
    UNION ALL
    SELECT t1_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT, 'first_token', * FROM fits
    WHERE t1_ns >= $from_ns AND t1_ns < $to_ns AND ttft_ns IS NOT NULL
)
SELECT
    bucket,
    count(*) FILTER (what = 'offered') AS offered,
    count(*) FILTER (what = 'first_token') AS first_tokens,
    count(*) FILTER (what = 'finished') AS finished,
    quantile_cont(ttft_ns, 0.5) FILTER (what = 'first_token') AS p50_ns,
    quantile_cont(ttft_ns, 0.95) FILTER (what = 'first_token') AS p95_ns,
    quantile_cont(ttft_ns, 0.99) FILTER (what = 'first_token') AS p99_ns,
    CAST(sum(ttft_ns) FILTER (what = 'first_token') AS DOUBLE) / first_tokens AS mean_ns,
    CAST(sum(COLUMNS('^section_.*_ns$')) FILTER (what = 'first_token') AS DOUBLE)
        / count(*) FILTER (what = 'first_token') AS '\0'
FROM event
GROUP BY GROUPING SETS ((bucket), ())
ORDER BY bucket NULLS FIRST
