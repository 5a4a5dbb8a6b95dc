-- Make the missing rows of queues; the rows of their groups exist already. :names is JSON [[queue, group], ...].
INSERT INTO store_queues (environment, name, group_id)
SELECT :environment, n ->> 0, g.id
FROM jsonb_array_elements(CAST(:names AS jsonb)) AS n
JOIN store_groups AS g ON g.environment = :environment AND g.name = n ->> 1
ORDER BY 2
ON CONFLICT DO NOTHING
RETURNING id
