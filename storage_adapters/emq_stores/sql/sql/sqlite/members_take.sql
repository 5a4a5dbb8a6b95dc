-- The first members of one slot that may be claimed: (slot_id, last rank, limit). Run once for each slot that has them.
SELECT m.id, m.rank, CAST(m.member AS BLOB) AS member, CAST(m.body AS BLOB) AS body, CAST(m.note AS BLOB) AS note,
       m.merged, m.reason, m.history
FROM store_members AS m
WHERE m.slot_id = ? AND m.state = 0 AND m.rank <= ?
  AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = m.slot_id AND t.id = m.id AND t.state = 1) IS NULL
ORDER BY m.rank, m.id
LIMIT ?
