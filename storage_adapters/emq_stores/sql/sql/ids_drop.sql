-- Forget all ids of a group.
DELETE FROM store_ids WHERE group_id = :group
RETURNING 1
