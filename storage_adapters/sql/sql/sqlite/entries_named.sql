-- Entries of lanes by their id, or by a range of ids. :rows is JSON [[number, lane, id, begin, end], ...]; the range is
-- [begin, end). At most :most rows.
SELECT r.value ->> 0 AS number, e.id, e.state
FROM json_each(:rows) AS r
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = r.value ->> 1
CROSS JOIN store_entries AS e ON e.slot_id = g.id AND e.state < 3
    AND (e.id = r.value ->> 2 OR (e.id >= r.value ->> 3 AND e.id < r.value ->> 4))
LIMIT :most
