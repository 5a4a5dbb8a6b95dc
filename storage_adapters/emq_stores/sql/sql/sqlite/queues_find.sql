-- The queues' rows and the epochs of their groups. :names is a JSON array.
SELECT q.name, q.id, q.head, q.tail, q.sealed, q.layout, q.incarnation, q.armed, g.epoch
FROM json_each(:names) AS n
CROSS JOIN store_queues AS q ON q.environment = :environment AND q.name = n.value
CROSS JOIN store_groups AS g ON g.id = q.group_id
