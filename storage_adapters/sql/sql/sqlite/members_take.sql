-- The first members of one slot that may be claimed: (slot_id, last rank, limit). Run once for each slot that has some.
SELECT m.id, m.rank, m.member, m.body, m.note, m.merged
FROM store_members AS m
WHERE m.slot_id = ? AND m.state = 0 AND m.rank <= ?
  AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = m.slot_id AND t.id = m.id AND t.state = 1) IS NULL
ORDER BY m.rank, m.id
LIMIT ?
