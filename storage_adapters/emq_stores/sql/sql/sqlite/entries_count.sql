-- For each lane and state: the number of entries, and their first at_ms; the state of a lane without entries is NULL.
-- :names is a JSON array.
SELECT g.name, e.state, count(e.slot_id) AS entries, min(e.at_ms) AS first_ms, g.sealed
FROM json_each(:names) AS n
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = n.value
LEFT JOIN store_entries AS e ON e.slot_id = g.id
GROUP BY g.name, g.sealed, e.state
