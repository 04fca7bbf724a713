-- How much is in the store, and of when?
--
-- Parameters: none
-- Columns, one row: requests (how many); first_ns, last_ns (earliest window start, latest stamp; Unix ns; NULL without
--   requests).
SELECT count(*) AS requests, min(t0_ns) AS first_ns, max(last_ns) AS last_ns FROM requests
