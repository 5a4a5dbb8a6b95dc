-- A page of a slot's dead members in order of (time of death, member). It starts behind (:after_ms, :after_member) and
-- leaves out the first :skipped.
SELECT CAST(m.member AS BLOB) AS member, CAST(m.rank AS REAL) AS rank, CAST(m.body AS BLOB) AS body,
       CAST(m.note AS BLOB) AS note, CAST(m.reason AS TEXT) AS reason, CAST(m.history AS TEXT) AS history
FROM store_groups AS g
JOIN store_members AS m ON m.slot_id = g.id AND m.state = 2
WHERE g.environment = :environment AND g.name = :slot
  AND m.rank >= :after_ms AND (m.rank > :after_ms OR m.member > :after_member)
ORDER BY m.rank, m.member
LIMIT :page OFFSET :skipped
