-- Columns: head, tail, sealed, layout, armed, id. The rows are locked.
UPDATE store_queues AS q
SET head = r.head, tail = r.tail, sealed = r.sealed, layout = r.layout, armed = r.armed
FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::bigint[], %s::text[], %s::bigint[]) AS r (head, tail, sealed, layout, armed, id)
WHERE q.id = r.id
