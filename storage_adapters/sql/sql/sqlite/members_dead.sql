-- A page of a slot's dead members in order of (time of death, member), those behind (:after_ms, :after_member).
SELECT m.member, m.rank, m.body, m.note, m.reason, m.history
FROM store_groups AS g
JOIN store_members AS m ON m.slot_id = g.id AND m.state = 2
WHERE g.environment = :environment AND g.name = :slot
  AND m.rank >= :after_ms AND (m.rank > :after_ms OR m.member > :after_member)
ORDER BY m.rank, m.member
LIMIT :page
