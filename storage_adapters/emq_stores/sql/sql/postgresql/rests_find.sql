-- Return those of the given members that rest. :rows is JSON [[slot_id, id], ...].
SELECT m.slot_id, m.id
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_rests AS m ON m.slot_id = CAST(r ->> 0 AS bigint) AND m.id = r ->> 1
