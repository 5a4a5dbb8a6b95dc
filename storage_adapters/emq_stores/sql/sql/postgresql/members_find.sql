-- Members in all their states, without their bodies. :rows is JSON [[slot_id, id], ...].
SELECT m.slot_id, m.id, m.state, m.rank, m.merged, m.reason, m.history
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_members AS m ON m.slot_id = CAST(r ->> 0 AS bigint) AND m.id = r ->> 1
