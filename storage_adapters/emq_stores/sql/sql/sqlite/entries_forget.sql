-- Forget the entries of a lane that were taken for good: those taken before a time (ms), and those before the latest
-- :most. An entry that was taken later in the lane has a greater at_ms.
DELETE FROM store_entries
WHERE slot_id = :lane AND state = 3 AND at_ms < max(
    :before_ms,
    coalesce((SELECT e.at_ms + 1 FROM store_entries AS e WHERE e.slot_id = :lane AND e.state = 3
              ORDER BY e.at_ms DESC LIMIT 1 OFFSET :most), 0)
)
RETURNING 1
