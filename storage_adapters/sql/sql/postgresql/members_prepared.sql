-- Members in prepare under a token below a bound. :rows is JSON [[number, slot_id, bound], ...]; answers
-- (number, slot_id, id), the one that is longest in prepare first.
SELECT CAST(r ->> 0 AS bigint) AS number, m.slot_id, m.id
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_members AS m
  ON m.slot_id = CAST(r ->> 1 AS bigint) AND m.state = 1 AND m.rank < CAST(r ->> 2 AS float8)
ORDER BY 1, m.rank, m.id
