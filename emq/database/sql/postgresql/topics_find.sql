-- Bodies of the live topics among :names (JSON array of names).
SELECT t.name, t.body
FROM jsonb_array_elements_text(CAST(:names AS jsonb)) AS n (name)
JOIN emq_topics AS t ON t.environment = :environment AND t.name = n.name
WHERE t.live = 1
