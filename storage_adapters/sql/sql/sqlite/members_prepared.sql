-- Members in prepare under a token below a bound. :rows is JSON [[number, slot_id, bound], ...]; answers
-- (number, slot_id, id), the one that is longest in prepare first.
SELECT r.value ->> 0 AS number, m.slot_id, m.id
FROM json_each(:rows) AS r
CROSS JOIN store_members AS m ON m.slot_id = r.value ->> 1 AND m.state = 1 AND m.rank < r.value ->> 2
ORDER BY 1, m.rank, m.id
