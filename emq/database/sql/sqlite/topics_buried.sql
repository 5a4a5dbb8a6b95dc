-- Names and bodies of the deleted topics among :names (JSON array of names).
SELECT t.name, t.body
FROM json_each(:names) AS n
CROSS JOIN emq_topics AS t ON t.environment = :environment AND t.name = n.value
WHERE t.live = 0
