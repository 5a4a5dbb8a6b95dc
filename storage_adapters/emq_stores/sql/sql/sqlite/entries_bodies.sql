-- Bodies of entries. :rows is JSON [[slot_id, id], ...].
SELECT e.slot_id, e.id, CAST(e.body AS BLOB) AS body
FROM json_each(:rows) AS r
CROSS JOIN store_entries AS e ON e.slot_id = r.value ->> 0 AND e.id = r.value ->> 1
