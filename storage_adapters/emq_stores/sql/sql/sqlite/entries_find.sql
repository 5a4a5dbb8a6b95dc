-- State, at_ms and due_ms of entries. :rows is JSON [[slot_id, id], ...]; an unknown entry has no row in the result.
SELECT e.slot_id, e.id, e.state, e.at_ms, e.due_ms
FROM json_each(:rows) AS r
CROSS JOIN store_entries AS e ON e.slot_id = r.value ->> 0 AND e.id = r.value ->> 1
