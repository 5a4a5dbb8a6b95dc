-- Members in all their states, without their bodies. :rows is JSON [[slot_id, id], ...].
SELECT m.slot_id, m.id, m.state, m.rank, m.merged, m.reason, m.history
FROM json_each(:rows) AS r
CROSS JOIN store_members AS m ON m.slot_id = r.value ->> 0 AND m.id = r.value ->> 1
