-- When the next waiting entry of each slot is due; NULL for none. :slots is a JSON array of ids.
SELECT CAST(s.id AS bigint) AS slot_id,
       (SELECT min(at_ms) FROM store_entries WHERE slot_id = CAST(s.id AS bigint) AND state = 0) AS due_ms
FROM jsonb_array_elements_text(CAST(:slots AS jsonb)) AS s (id)
