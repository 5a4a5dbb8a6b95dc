-- Columns: epoch, armed, armed_rank, fold, waiting, sealed, id. The rows are locked.
UPDATE store_groups AS g
SET epoch = r.epoch, armed = r.armed, armed_rank = r.rank, fold = r.fold, waiting = r.waiting,
    sealed = r.sealed
FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::text[], %s::bigint[], %s::int[], %s::bigint[])
    AS r (epoch, armed, rank, fold, waiting, sealed, id)
WHERE g.id = r.id
