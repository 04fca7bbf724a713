-- Which traces and records may have requests that are older than their telemetry? (After a stop or a crash.)
--
-- Parameters:
--   $back_ns   how far before the newest telemetry to look for some that was stored and not derived, ns
-- Columns: source: a trace id (32 hex digits) or record:<kind>:<key>, of every request in flight, and of telemetry
--   received later than what its requests were derived from. NULL never occurs.
WITH received AS (
    SELECT replace(CAST(trace_id AS VARCHAR), '-', '') AS source, max(received_ns) AS received_ns
    FROM spans
    WHERE received_ns > 0 AND received_ns >= (SELECT max(received_ns) FROM spans) - $back_ns
    GROUP BY trace_id
    UNION ALL
    SELECT 'record:' || kind || ':' || key, received_ns
    FROM records
    WHERE received_ns > 0 AND received_ns >= (SELECT max(received_ns) FROM records) - $back_ns
),
derived AS (
    SELECT source, max(requests.received_ns) AS received_ns
    FROM request_sources SEMI JOIN received USING (source) JOIN requests USING (uid, t0_ns)
    GROUP BY source
)
SELECT source FROM request_sources JOIN requests USING (uid, t0_ns) WHERE outcome = 'in_flight'
UNION
SELECT source FROM received LEFT JOIN derived USING (source)
WHERE derived.received_ns IS NULL OR derived.received_ns < received.received_ns
ORDER BY source
