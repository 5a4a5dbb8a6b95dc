-- Columns: id. The rows are locked, and the queues are empty.
DELETE FROM store_queues AS q USING unnest(%s::bigint[]) AS r (id) WHERE q.id = r.id
