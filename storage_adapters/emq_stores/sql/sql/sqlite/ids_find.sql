-- Those of these ids that their groups remember at a time (ms). :rows is JSON [[group_id, id], ...].
SELECT i.group_id, i.id
FROM json_each(:rows) AS r
CROSS JOIN store_ids AS i ON i.group_id = r.value ->> 0 AND i.id = r.value ->> 1
WHERE i.until_ms > :now_ms
