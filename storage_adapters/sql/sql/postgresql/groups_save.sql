-- Columns: epoch, armed, armed_rank, fold, waiting, id. The rows are locked.
UPDATE store_groups AS g
SET epoch = r.epoch, armed = r.armed, armed_rank = r.rank, fold = r.fold, waiting = r.waiting
FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::text[], %s::bigint[], %s::bigint[])
    AS r (epoch, armed, rank, fold, waiting, id)
WHERE g.id = r.id
