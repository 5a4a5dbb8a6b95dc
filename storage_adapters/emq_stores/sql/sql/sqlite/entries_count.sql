-- For each lane and state: the number of entries, and their first at_ms. :names is a JSON array.
SELECT g.name, e.state, count(*) AS entries, min(e.at_ms) AS first_ms
FROM json_each(:names) AS n
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = n.value
CROSS JOIN store_entries AS e ON e.slot_id = g.id
GROUP BY g.name, e.state
