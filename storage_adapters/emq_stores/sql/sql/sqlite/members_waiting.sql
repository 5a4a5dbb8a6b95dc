-- A page of a slot's waiting members in claim order, without the first :skip.
SELECT CAST(m.member AS BLOB) AS member, CAST(m.rank AS REAL) AS rank, CAST(m.body AS BLOB) AS body,
       CAST(m.note AS BLOB) AS note, CAST(m.merged AS INTEGER) AS merged
FROM store_groups AS g
JOIN store_members AS m ON m.slot_id = g.id AND m.state = 0
WHERE g.environment = :environment AND g.name = :slot
ORDER BY m.rank, m.id
LIMIT :page OFFSET :skip
