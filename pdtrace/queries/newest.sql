-- How old is the newest thing that is known?
--
-- Parameters: none
-- Columns, one row: newest_ns: latest receive time of any request's telemetry, or its latest stamp where nothing was
--   received over the network (files). Unix ns; NULL without requests.
SELECT max(CASE WHEN received_ns > 0 THEN received_ns ELSE last_ns END) AS newest_ns FROM requests
