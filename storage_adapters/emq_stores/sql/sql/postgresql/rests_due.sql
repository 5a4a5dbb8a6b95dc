-- The first 1,000 members whose rest ends by a given time. :rows is JSON [[number, slot_id, time], ...]; returns
-- (number, slot_id, id, rest_ms, rank), the earliest end of a rest first.
SELECT CAST(r ->> 0 AS bigint) AS number, m.slot_id, m.id, m.rest_ms, m.rank
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_rests AS m ON m.slot_id = CAST(r ->> 1 AS bigint) AND m.rest_ms <= CAST(r ->> 2 AS bigint)
ORDER BY 1, m.rest_ms, m.id
LIMIT 1000
