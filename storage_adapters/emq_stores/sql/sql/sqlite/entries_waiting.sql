-- A page of a lane's waiting entries in order of (at_ms, id), without the first :skipped.
SELECT e.id, CAST(e.body AS BLOB) AS body, CAST(e.at_ms AS INTEGER) AS at_ms, CAST(e.priority AS INTEGER) AS priority
FROM store_groups AS g
JOIN store_entries AS e ON e.slot_id = g.id AND e.state = 0
WHERE g.environment = :environment AND g.name = :lane
ORDER BY e.at_ms, e.id
LIMIT :page OFFSET :skipped
