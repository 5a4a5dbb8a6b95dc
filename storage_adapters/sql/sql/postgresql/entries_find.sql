-- States of entries. :rows is JSON [[slot_id, id], ...]; one that is not there is not answered.
SELECT e.slot_id, e.id, e.state
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_entries AS e ON e.slot_id = CAST(r ->> 0 AS bigint) AND e.id = r ->> 1
