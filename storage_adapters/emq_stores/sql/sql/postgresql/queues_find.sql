-- The queues' rows and the epochs of their groups, not locked. :names is a JSON array.
SELECT q.name, q.id, q.head, q.tail, q.sealed, q.layout, q.incarnation, q.armed, g.epoch
FROM store_queues AS q
JOIN store_groups AS g ON g.id = q.group_id
WHERE q.environment = :environment
  AND q.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))
