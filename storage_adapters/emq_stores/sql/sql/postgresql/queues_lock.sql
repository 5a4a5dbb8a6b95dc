-- The queues' rows, locked in the order of their ids. :names is a JSON array.
SELECT q.name, q.id, q.head, q.tail, q.sealed, q.layout, q.incarnation, q.armed
FROM store_queues AS q
WHERE q.environment = :environment
  AND q.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))
ORDER BY q.id
FOR NO KEY UPDATE
