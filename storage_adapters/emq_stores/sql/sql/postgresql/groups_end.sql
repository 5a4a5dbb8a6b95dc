-- The groups' rows, locked in the order of their ids, also against making queues for them. :names is a JSON array.
SELECT g.name, g.id, g.epoch, g.armed, g.armed_rank, g.fold, g.waiting, g.sealed
FROM store_groups AS g
WHERE g.environment = :environment
  AND g.name = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:names AS jsonb))))
ORDER BY g.id
FOR UPDATE
