-- The first 1,000 members whose rest ends by a given time. :rows is JSON [[number, slot_id, time], ...]; returns
-- (number, slot_id, id, rest_ms, rank), the earliest end of a rest first.
SELECT r.value ->> 0 AS number, m.slot_id, m.id, m.rest_ms, m.rank
FROM json_each(:rows) AS r
CROSS JOIN store_rests AS m ON m.slot_id = r.value ->> 1 AND m.rest_ms <= r.value ->> 2
ORDER BY 1, m.rest_ms, m.id
LIMIT 1000
