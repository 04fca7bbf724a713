-- What is known of the clocks? The intervals of all requests that saw a pair, intersected.
--
-- Parameters: none
-- Columns, one row per (clock, reference):
--   low_ns, high_ns   the clock's offset against the reference is in between; NULL = not bounded on that side;
--                     low above high = no constant offset fits: the clock drifts or jumped
--   requests          requests that saw the pair
--   applied_min_ns, applied_max_ns   what was added to place activities; 0 = nothing moved
-- Units: ns.
SELECT
    clock, reference,
    max(low_ns) AS low_ns,
    min(high_ns) AS high_ns,
    count(DISTINCT uid) AS requests,
    min(applied_ns) AS applied_min_ns,
    max(applied_ns) AS applied_max_ns
FROM (SELECT uid, unnest(offsets, recursive := true) FROM requests WHERE len(offsets) > 0)
GROUP BY clock, reference
ORDER BY clock, reference
