-- What was not kept, and why?
--
-- Parameters:
--   $limit   rows to give; NULL = all
-- Columns, most frequent first: what (span, record, log, point, line, file, request); place (grpc, http, store or
--   path:line); reason (a sentence); count.
SELECT what, place, reason, count
FROM rejections
ORDER BY count DESC, what, place, reason
LIMIT $limit
