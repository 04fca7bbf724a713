-- What came in, what came again, what was refused?
--
-- Parameters: none
-- Columns, one row of counts: spans, records, logs, points (kept); duplicates (came again, same content); conflicts (same
--   identity, other content: the later end stays); rejected (not kept, see doctor_rejections).
SELECT
    (SELECT count(*) FROM spans) AS spans,
    (SELECT count(*) FROM records) AS records,
    (SELECT count(*) FROM logs) AS logs,
    (SELECT count(*) FROM points) AS points,
    (SELECT CAST(coalesce(sum(duplicates), 0) AS BIGINT) FROM repeats) AS duplicates,
    (SELECT CAST(coalesce(sum(conflicts), 0) AS BIGINT) FROM repeats) AS conflicts,
    (SELECT CAST(coalesce(sum(count), 0) AS BIGINT) FROM rejections) AS rejected
