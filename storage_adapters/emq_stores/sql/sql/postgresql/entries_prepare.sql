-- Columns: claimed_ms, epoch, slot_id, id: waiting entries are prepared now.
UPDATE store_entries AS e
SET state = 1, at_ms = r.claimed_ms, epoch = r.epoch
FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[]) AS r (claimed_ms, epoch, slot_id, id)
WHERE e.slot_id = r.slot_id AND e.id = r.id
