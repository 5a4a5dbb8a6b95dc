-- Those of these ids that their groups remember at a time (ms). :rows is JSON [[group_id, id], ...].
SELECT i.group_id, i.id
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_ids AS i ON i.group_id = CAST(r ->> 0 AS bigint) AND i.id = r ->> 1
WHERE i.until_ms > :now_ms
