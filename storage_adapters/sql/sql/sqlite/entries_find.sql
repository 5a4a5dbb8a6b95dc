-- States of entries. :rows is JSON [[slot_id, id], ...]; one that is not there is not answered.
SELECT e.slot_id, e.id, e.state
FROM json_each(:rows) AS r
CROSS JOIN store_entries AS e ON e.slot_id = r.value ->> 0 AND e.id = r.value ->> 1
