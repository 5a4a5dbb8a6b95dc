-- Drop the rows of groups and slots that are locked, but for groups with other queues than those that are forgotten.
-- :ids is a JSON array.
DELETE FROM store_groups
WHERE id IN (SELECT value FROM json_each(:ids)) AND id NOT IN (SELECT group_id FROM store_queues)
RETURNING id
