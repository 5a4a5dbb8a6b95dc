-- Bodies of the live topics among :names (JSON array of names).
-- CROSS JOIN keeps the short list outside and the table's key inside; the planner cannot know how long the list is.
SELECT t.name, t.body
FROM json_each(:names) AS n
CROSS JOIN emq_topics AS t ON t.environment = :environment AND t.name = n.value
WHERE t.live = 1
