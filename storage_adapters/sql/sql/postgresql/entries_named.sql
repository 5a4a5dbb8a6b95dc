-- Entries of lanes by their id, or by a range of ids. :rows is JSON [[number, lane, id, begin, end], ...]; the range is
-- [begin, end). At most :most rows.
SELECT CAST(r ->> 0 AS bigint) AS number, e.id, e.state
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_groups AS g ON g.environment = :environment AND g.name = r ->> 1
JOIN store_entries AS e ON e.slot_id = g.id AND e.state < 3
    AND (e.id = r ->> 2 OR (e.id >= r ->> 3 AND e.id < r ->> 4))
LIMIT :most
