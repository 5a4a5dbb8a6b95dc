-- Return those of the given members that rest. :rows is JSON [[slot_id, id], ...].
SELECT m.slot_id, m.id
FROM json_each(:rows) AS r
CROSS JOIN store_rests AS m ON m.slot_id = r.value ->> 0 AND m.id = r.value ->> 1
