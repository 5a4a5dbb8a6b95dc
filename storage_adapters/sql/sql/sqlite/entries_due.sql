-- The first due entries of one slot: (slot_id, now_ms, limit). Run once for each slot that has some.
SELECT id, body FROM store_entries WHERE slot_id = ? AND state = 0 AND at_ms <= ? ORDER BY at_ms, id LIMIT ?
