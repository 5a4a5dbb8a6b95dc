-- The rows among :names (JSON array of names), tombstones included.
-- CROSS JOIN keeps the short list outside and the table's key inside; the planner cannot know how long the list is.
SELECT t.name, t.body, t.live, t.version
FROM json_each(:names) AS n
CROSS JOIN emq_topics AS t ON t.environment = :environment AND t.name = n.value
