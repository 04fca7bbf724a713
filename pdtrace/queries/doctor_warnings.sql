-- Which adjustments, gaps and doubts are there?
--
-- Parameters: none
-- Columns, one row per code, most frequent first:
--   code       the warning
--   requests   requests that carry it
--   example    its text on the latest of them
SELECT code, count(DISTINCT uid) AS requests, arg_max(text, t0_ns) AS example
FROM (SELECT uid, t0_ns, unnest(warnings, recursive := true) FROM requests WHERE len(warnings) > 0)
GROUP BY code
ORDER BY requests DESC, code
