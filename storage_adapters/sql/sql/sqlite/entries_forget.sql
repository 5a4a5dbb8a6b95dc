-- Forget which entries of a lane were taken for good: before a time (ms), and before the latest :most of them. The
-- at_ms of each of them is greater than that of those taken before it in the lane.
DELETE FROM store_entries
WHERE slot_id = :lane AND state = 3 AND at_ms < max(
    :before_ms,
    coalesce((SELECT e.at_ms + 1 FROM store_entries AS e WHERE e.slot_id = :lane AND e.state = 3
              ORDER BY e.at_ms DESC LIMIT 1 OFFSET :most), 0)
)
RETURNING 1
