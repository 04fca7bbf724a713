-- Which traces and records are stored? (For rederive.)
--
-- Parameters:
--   $since_ns   only those with a stamp at or after it, Unix ns; NULL = all
-- Columns: source: a trace id (32 hex digits) or record:<kind>:<key>; first_ns: its earliest stamp, Unix ns, the
--   receive time for records that carry none. Oldest first. NULL never occurs.
SELECT source, min(first_ns) AS first_ns
FROM (
    SELECT replace(CAST(trace_id AS VARCHAR), '-', '') AS source, min(start_ns) AS first_ns,
        max(greatest(start_ns, end_ns)) AS last_ns
    FROM spans GROUP BY trace_id
    UNION ALL
    SELECT 'record:' || kind || ':' || key, CASE WHEN time_ns = 0 THEN received_ns ELSE time_ns END AS at_ns, at_ns
    FROM records
)
WHERE $since_ns IS NULL OR last_ns >= $since_ns
GROUP BY source
ORDER BY first_ns, source
