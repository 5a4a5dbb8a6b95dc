-- Bodies and notes of members in all their states. :rows is JSON [[slot_id, id], ...].
SELECT m.slot_id, m.id, m.state, CAST(m.body AS BLOB) AS body, CAST(m.note AS BLOB) AS note
FROM json_each(:rows) AS r
CROSS JOIN store_members AS m ON m.slot_id = r.value ->> 0 AND m.id = r.value ->> 1
