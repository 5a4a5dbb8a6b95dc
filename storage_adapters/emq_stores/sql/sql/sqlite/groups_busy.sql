-- The rows of lanes and slots that hold entries or members, but for the notes on entries taken for good.
-- :ids is a JSON array.
SELECT s.value AS id
FROM json_each(:ids) AS s
WHERE EXISTS (SELECT 1 FROM store_entries AS e WHERE e.slot_id = s.value AND e.state IN (0, 1, 2))
   OR EXISTS (SELECT 1 FROM store_members AS m WHERE m.slot_id = s.value)
