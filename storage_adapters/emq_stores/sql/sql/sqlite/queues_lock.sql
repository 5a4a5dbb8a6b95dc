-- The queues' rows. :names is a JSON array. The transaction's write lock keeps others from changing them.
SELECT q.name, q.id, q.head, q.tail, q.sealed, q.layout, q.incarnation, q.armed
FROM json_each(:names) AS n
CROSS JOIN store_queues AS q ON q.environment = :environment AND q.name = n.value
