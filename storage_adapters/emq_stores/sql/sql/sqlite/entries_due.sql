-- The first due entries of one priority of a lane: (slot_id, priority, now_ms, limit). Run once for each such priority.
SELECT id, CAST(body AS BLOB) FROM store_entries
WHERE slot_id = ? AND state = 0 AND priority = ? AND at_ms <= ?
ORDER BY at_ms, id LIMIT ?
