-- Members in prepare under a token below a bound. :rows is JSON [[number, slot_id, bound, time bound], ...].
-- Resting members are included only below the time bound. Returns (number, slot_id, id), the oldest claim first.
SELECT CAST(r ->> 0 AS bigint) AS number, m.slot_id, m.id
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_members AS m
  ON m.slot_id = CAST(r ->> 1 AS bigint) AND m.state = 1 AND m.rank < CAST(r ->> 2 AS float8)
WHERE m.rank < CAST(r ->> 3 AS float8)
   OR (SELECT t.rest_ms FROM store_rests AS t WHERE t.slot_id = m.slot_id AND t.id = m.id) IS NULL
ORDER BY 1, m.rank, m.id
