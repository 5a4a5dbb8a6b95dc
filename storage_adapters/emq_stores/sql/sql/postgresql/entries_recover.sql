-- Let prepared entries wait again with their former due times, if their epoch is lower or their claim too old.
-- :rows is JSON [[slot_id, epoch], ...]; :older_than_ms may be NULL. Returns (slot_id, due_ms) of each.
UPDATE store_entries AS e
SET state = 0, at_ms = e.due_ms
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
WHERE e.slot_id = CAST(r ->> 0 AS bigint) AND e.state = 1
  AND (e.epoch < CAST(r ->> 1 AS bigint) OR e.at_ms < CAST(:older_than_ms AS bigint))
RETURNING e.slot_id, e.due_ms
