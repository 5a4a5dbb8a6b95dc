-- A page of a lane's dead letters in order of (at_ms, id), from behind (:after_ms, :after_id).
SELECT e.id, CAST(e.body AS BLOB) AS body, CAST(e.reason AS TEXT) AS reason, CAST(e.at_ms AS INTEGER) AS at_ms
FROM store_groups AS g
JOIN store_entries AS e ON e.slot_id = g.id AND e.state = 2
WHERE g.environment = :environment AND g.name = :lane AND (e.at_ms, e.id) > (:after_ms, :after_id)
ORDER BY e.at_ms, e.id
LIMIT :page
