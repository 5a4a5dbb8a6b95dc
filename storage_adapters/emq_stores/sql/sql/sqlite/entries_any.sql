-- The lanes with entries that are claimed (1) or dead (2). :lanes is a JSON array of ids. O(lanes).
SELECT s.value AS slot_id
FROM json_each(:lanes) AS s
WHERE EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = s.value AND e.state = 1)
   OR EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = s.value AND e.state = 2)
