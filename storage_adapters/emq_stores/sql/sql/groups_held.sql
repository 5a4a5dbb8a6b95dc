-- The names of the lanes and the addresses of the slots that hold messages.
SELECT g.name
FROM store_groups AS g
WHERE g.environment = :environment AND (
    EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = g.id AND e.state IN (0, 1, 2))
    OR EXISTS (SELECT 1 FROM store_members AS m WHERE m.slot_id = g.id)
)
ORDER BY g.name
