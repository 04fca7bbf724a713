-- Which dialects were seen?
--
-- Parameters: none
-- Columns, one row per dialect:
--   dialect    its name
--   requests   requests it told something about
--   spans      spans of those requests (a request that two dialects tell about counts for both)
SELECT dialect, CAST(sum(requests) AS BIGINT) AS requests, CAST(sum(spans) AS BIGINT) AS spans
FROM (
    SELECT unnest(list_distinct(dialects)) AS dialect, requests, spans
    FROM (SELECT dialects, count(*) AS requests, sum(span_count) AS spans FROM requests GROUP BY dialects)
)
GROUP BY dialect
ORDER BY dialect
