-- The groups' rows. :names is a JSON array. The transaction's write lock keeps others from changing them.
SELECT g.name, g.id, g.epoch, g.armed, g.armed_rank, g.fold, g.waiting, g.sealed
FROM json_each(:names) AS n
CROSS JOIN store_groups AS g ON g.environment = :environment AND g.name = n.value
