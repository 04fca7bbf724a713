-- Which traces and records was a request made of?
--
-- Parameters:
--   $uid   exactly
-- Columns: source: a trace id (32 hex digits) or record:<kind>:<key>. No rows: there is no such request.
SELECT DISTINCT source FROM request_sources WHERE uid = $uid ORDER BY source
