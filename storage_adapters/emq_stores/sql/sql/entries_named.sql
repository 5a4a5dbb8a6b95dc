-- Entries of a lane by their id, or by a range of ids, [:begin, :end), behind the id :after. At most :page rows, in order.
SELECT e.id, e.state
FROM store_groups AS g
JOIN store_entries AS e ON e.slot_id = g.id AND e.state < 3
    AND e.id >= :id AND e.id < :end AND (e.id = :id OR e.id >= :begin) AND e.id > :after
WHERE g.environment = :environment AND g.name = :lane
ORDER BY e.id
LIMIT :page
