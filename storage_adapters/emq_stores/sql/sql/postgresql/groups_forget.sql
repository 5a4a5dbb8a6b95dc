-- Drop the rows of groups and slots that are locked, but for groups with other queues than those that are forgotten.
-- :ids is a JSON array.
DELETE FROM store_groups AS g
WHERE g.id = ANY (ARRAY(SELECT CAST(jsonb_array_elements_text(CAST(:ids AS jsonb)) AS bigint)))
  AND NOT EXISTS (SELECT 1 FROM store_queues AS q WHERE q.group_id = g.id)
RETURNING g.id
