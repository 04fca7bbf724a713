-- Where does the time to first token go, and for whom? By any combination of dimensions.
--
-- Parameters:
--   $since_ns, $until_ns   window start (t0) at or after / before, Unix ns; NULL = no bound
--   $run, $model, $mode, $outcome, $prefill_worker, $decode_worker   equal to; NULL = any
--   $by_prefill_worker, $by_decode_worker, $by_link, $by_model, $by_mode, $by_run, $by_outcome   split by it if true
--   $minute_ns, $bucket_ns   split by t0 rounded down to a multiple of it; NULL = not
-- Columns, one row per group of requests that have a TTFT (the others never enter):
--   prefill_worker, decode_worker, model, mode, run, outcome   the group's value; NULL = unknown, or not split by it
--   link                      'P>D'; NULL = one side unknown, or not split by it
--   minute, bucket            start of the time bucket, Unix ns
--   requests, mean_ns, p50_ns, p90_ns, p95_ns, p99_ns   percentiles interpolate linearly
--   section_<stage>_ns        mean charged time; they sum to mean_ns. NULL = the stage occurs in no request
--   hidden_<stage>_ns         mean hidden time; NULL = none
--   p99_requests, p99_mean_ns, p99_section_<stage>_ns   the same over the requests at or above the group's p99: the
--                             "p99 decomposition". Percentiles of stages are never stacked: they do not add up.
-- Units: ns.
WITH chosen AS NOT MATERIALIZED (  -- reading the table twice is cheaper than keeping its rows
    SELECT
        struct_pack(
            prefill_worker := CASE WHEN $by_prefill_worker THEN prefill_worker END,
            decode_worker := CASE WHEN $by_decode_worker THEN decode_worker END,
            link := CASE WHEN $by_link THEN prefill_worker || '>' || decode_worker END,
            model := CASE WHEN $by_model THEN model END,
            mode := CASE WHEN $by_mode THEN mode END,
            run := CASE WHEN $by_run THEN run END,
            outcome := CASE WHEN $by_outcome THEN outcome END,
            minute := t0_ns // $minute_ns::BIGINT * $minute_ns::BIGINT,
            bucket := t0_ns // $bucket_ns::BIGINT * $bucket_ns::BIGINT
        ) AS cohort,
        ttft_ns,
        COLUMNS('^(section|hidden)_.*_ns$')
    FROM requests
    WHERE ($since_ns IS NULL OR t0_ns >= $since_ns)
        AND ($until_ns IS NULL OR t0_ns < $until_ns)
        AND ($run IS NULL OR run = $run)
        AND ($model IS NULL OR model = $model)
        AND ($mode IS NULL OR mode = $mode)
        AND ($outcome IS NULL OR outcome = $outcome)
        AND ($prefill_worker IS NULL OR prefill_worker = $prefill_worker)
        AND ($decode_worker IS NULL OR decode_worker = $decode_worker)
        AND ttft_ns IS NOT NULL
),
everyone AS (
    SELECT
        cohort,
        count(*) AS requests,
        CAST(sum(ttft_ns) AS DOUBLE) / count(*) AS mean_ns,
        quantile_cont(ttft_ns, [0.5, 0.9, 0.95, 0.99]) AS quantiles,
        CAST(sum(COLUMNS('^(section|hidden)_.*_ns$')) AS DOUBLE) / count(*) AS '\0'
    FROM chosen
    GROUP BY cohort
),
slowest AS (
    SELECT
        cohort,
        count(*) AS p99_requests,
        CAST(sum(ttft_ns) AS DOUBLE) / count(*) AS p99_mean_ns,
        CAST(sum(COLUMNS('^section_.*_ns$')) AS DOUBLE) / count(*) AS 'p99_\0'
    FROM (
        SELECT chosen.*
        FROM chosen JOIN (SELECT cohort, quantiles[4] AS p99_ns FROM everyone) AS bound USING (cohort)
        WHERE chosen.ttft_ns >= bound.p99_ns
    )
    GROUP BY cohort
)
SELECT
    unnest(cohort),
    requests, mean_ns,
    quantiles[1] AS p50_ns, quantiles[2] AS p90_ns, quantiles[3] AS p95_ns, quantiles[4] AS p99_ns,
    COLUMNS('^(section|hidden)_.*_ns$'),
    p99_requests, p99_mean_ns,
    COLUMNS('^p99_section_.*_ns$')
FROM everyone JOIN slowest USING (cohort)
ORDER BY cohort
