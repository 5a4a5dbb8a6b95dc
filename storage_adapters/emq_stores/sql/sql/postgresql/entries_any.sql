-- The lanes with entries that are claimed (1) or dead (2). :lanes is a JSON array of ids. O(lanes).
SELECT CAST(s.id AS bigint) AS slot_id
FROM jsonb_array_elements_text(CAST(:lanes AS jsonb)) AS s (id)
WHERE EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = CAST(s.id AS bigint) AND e.state = 1)
   OR EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = CAST(s.id AS bigint) AND e.state = 2)
