-- For each lane and state: the number of entries, and their first at_ms; the state of a lane without entries is NULL.
-- :names is a JSON array.
SELECT g.name, e.state, count(e.slot_id) AS entries, min(e.at_ms) AS first_ms, g.sealed
FROM store_groups AS g
LEFT JOIN store_entries AS e ON e.slot_id = g.id
WHERE g.environment = :environment
  AND g.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))
GROUP BY g.name, g.sealed, e.state
