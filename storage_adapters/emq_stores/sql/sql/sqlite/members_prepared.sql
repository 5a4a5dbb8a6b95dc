-- Members in prepare under a token below a bound. :rows is JSON [[number, slot_id, bound, time bound], ...].
-- Resting members are included only below the time bound. Returns (number, slot_id, id), the oldest claim first.
SELECT r.value ->> 0 AS number, m.slot_id, m.id
FROM json_each(:rows) AS r
CROSS JOIN store_members AS m ON m.slot_id = r.value ->> 1 AND m.state = 1 AND m.rank < r.value ->> 2
WHERE m.rank < r.value ->> 3
   OR (SELECT t.rest_ms FROM store_rests AS t WHERE t.slot_id = m.slot_id AND t.id = m.id) IS NULL
ORDER BY 1, m.rank, m.id
