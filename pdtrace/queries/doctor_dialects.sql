-- Which dialects were seen?
--
-- Parameters: none
-- Columns, one row per dialect:
--   dialect    its name
--   requests   requests it told something about
--   spans      spans of those requests (a request that two dialects tell about counts for both)
SELECT dialect, count(*) AS requests, CAST(sum(span_count) AS BIGINT) AS spans
FROM (SELECT unnest(list_distinct(dialects)) AS dialect, span_count FROM requests)
GROUP BY dialect
ORDER BY dialect
