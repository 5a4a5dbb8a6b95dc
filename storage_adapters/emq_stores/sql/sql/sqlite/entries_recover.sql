-- Let prepared entries wait again with their former due times, if their epoch is lower or their claim too old.
-- :rows is JSON [[slot_id, epoch], ...]; :older_than_ms may be NULL. Returns (slot_id, due_ms) of each.
UPDATE store_entries AS e
SET state = 0, at_ms = e.due_ms
FROM json_each(:rows) AS r
WHERE e.slot_id = r.value ->> 0 AND e.state = 1 AND (e.epoch < r.value ->> 1 OR e.at_ms < :older_than_ms)
RETURNING slot_id, due_ms
