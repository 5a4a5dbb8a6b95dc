-- Forget the ids of a group whose time is over (ms), :most of them at most.
DELETE FROM store_ids
WHERE group_id = :group AND id IN (
    SELECT i.id FROM store_ids AS i
    WHERE i.group_id = :group AND i.until_ms <= :now_ms
    ORDER BY i.until_ms LIMIT :most
)
RETURNING 1
