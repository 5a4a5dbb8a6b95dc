-- State, at_ms and due_ms of entries. :rows is JSON [[slot_id, id], ...]; an unknown entry has no row in the result.
SELECT e.slot_id, e.id, e.state, e.at_ms, e.due_ms
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_entries AS e ON e.slot_id = CAST(r ->> 0 AS bigint) AND e.id = r ->> 1
