-- at_ms of the entry of a lane that was taken for good last; no row if the lane remembers none.
SELECT e.at_ms FROM store_entries AS e
WHERE e.slot_id = :lane AND e.state = 3
ORDER BY e.at_ms DESC LIMIT 1
