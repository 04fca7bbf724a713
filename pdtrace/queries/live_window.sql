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
WITH fits AS NOT MATERIALIZED (
    SELECT t0_ns, t1_ns, end_ns, ttft_ns, COLUMNS('^section_.*_ns$')
    FROM requests
    WHERE ($run IS NULL OR run = $run)
        AND ($model IS NULL OR model = $model)
        AND ($mode IS NULL OR mode = $mode)
        AND ($outcome IS NULL OR outcome = $outcome)
        AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
        AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
),
counted AS (
    SELECT bucket, sum(started) AS offered, sum(ended) AS finished
    FROM (
        SELECT t0_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT AS bucket, count(*) AS started, 0 AS ended FROM fits
        WHERE t0_ns >= $from_ns AND t0_ns < $to_ns GROUP BY ALL
        UNION ALL
        SELECT end_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT, 0, count(*) FROM fits
        WHERE end_ns >= $from_ns AND end_ns < $to_ns GROUP BY ALL
    )
    GROUP BY GROUPING SETS ((bucket), ())
),
answered AS (
    SELECT
        t1_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT AS bucket,
        count(*) AS first_tokens,
        quantile_cont(ttft_ns, [0.5, 0.95, 0.99]) AS quantiles,
        CAST(sum(ttft_ns) AS DOUBLE) / count(*) AS mean_ns,
        CAST(sum(COLUMNS('^section_.*_ns$')) AS DOUBLE) / count(*) AS '\0'
    FROM fits
    WHERE t1_ns >= $from_ns AND t1_ns < $to_ns AND ttft_ns IS NOT NULL
    GROUP BY GROUPING SETS ((bucket), ())
)
SELECT
    nullif(slot, -1) AS bucket,  -- -1 stands for the whole window: joins do not match NULL
    CAST(coalesce(offered, 0) AS BIGINT) AS offered,
    coalesce(first_tokens, 0) AS first_tokens,
    CAST(coalesce(finished, 0) AS BIGINT) AS finished,
    quantiles[1] AS p50_ns, quantiles[2] AS p95_ns, quantiles[3] AS p99_ns,
    mean_ns,
    COLUMNS('^section_.*_ns$')
FROM (SELECT coalesce(bucket, -1) AS slot, offered, finished FROM counted) AS counted
FULL JOIN (SELECT coalesce(bucket, -1) AS slot, * EXCLUDE (bucket) FROM answered) AS answered USING (slot)
ORDER BY bucket NULLS FIRST
