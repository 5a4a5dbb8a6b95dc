-- Columns: head, tail, sealed, armed, id. The rows are locked.
UPDATE store_queues AS q
SET head = r.head, tail = r.tail, sealed = r.sealed, armed = r.armed
FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::text[], %s::bigint[]) AS r (head, tail, sealed, armed, id)
WHERE q.id = r.id
