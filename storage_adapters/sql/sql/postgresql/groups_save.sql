-- Columns: epoch, armed, armed_rank, id. The rows are locked.
UPDATE store_groups AS g
SET epoch = r.epoch, armed = r.armed, armed_rank = r.rank
FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::bigint[]) AS r (epoch, armed, rank, id)
WHERE g.id = r.id
