-- A page of a slot's waiting members in claim order, those behind the first :skip.
SELECT m.member, m.rank, m.body, m.note, m.merged
FROM store_groups AS g
JOIN store_members AS m ON m.slot_id = g.id AND m.state = 0
WHERE g.environment = :environment AND g.name = :slot
ORDER BY m.rank, m.id
LIMIT :page OFFSET :skip
