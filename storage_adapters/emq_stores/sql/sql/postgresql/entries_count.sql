-- For each lane and state: the number of entries, and their first at_ms. :names is a JSON array.
SELECT g.name, e.state, count(*) AS entries, min(e.at_ms) AS first_ms
FROM store_groups AS g
JOIN store_entries AS e ON e.slot_id = g.id
WHERE g.environment = :environment
  AND g.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))
GROUP BY g.name, e.state
