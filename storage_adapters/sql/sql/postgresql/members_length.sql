-- How many members wait in each slot. :slots is a JSON array of ids.
SELECT s.id AS slot_id, (SELECT count(*) FROM store_members AS m WHERE m.slot_id = s.id AND m.state = 0) AS waiting
FROM (SELECT CAST(j AS bigint) AS id FROM jsonb_array_elements_text(CAST(:slots AS jsonb)) AS j) AS s
