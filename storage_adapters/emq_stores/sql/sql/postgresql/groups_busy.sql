-- The rows of lanes and slots that hold entries or members, but for the notes on entries taken for good.
-- :ids is a JSON array.
SELECT CAST(s.id AS bigint) AS id
FROM jsonb_array_elements_text(CAST(:ids AS jsonb)) AS s (id)
WHERE EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = CAST(s.id AS bigint) AND e.state IN (0, 1, 2))
   OR EXISTS (SELECT 1 FROM store_members AS m WHERE m.slot_id = CAST(s.id AS bigint))
