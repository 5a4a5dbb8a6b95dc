-- Bodies of entries. :rows is JSON [[slot_id, id], ...].
SELECT e.slot_id, e.id, e.body
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_entries AS e ON e.slot_id = CAST(r ->> 0 AS bigint) AND e.id = r ->> 1
