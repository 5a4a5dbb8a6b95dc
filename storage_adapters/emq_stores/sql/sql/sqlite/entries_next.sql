-- Due time of the next waiting entry of each lane and priority, for the priorities with entries, highest first.
-- :lanes is a JSON array of ids. The query steps from priority to priority in the index, however many entries wait.
WITH RECURSIVE found (slot_id, priority) AS (
    SELECT s.value, (SELECT min(e.priority) FROM store_entries AS e WHERE e.slot_id = s.value AND e.state = 0)
    FROM json_each(:lanes) AS s
    UNION ALL
    SELECT f.slot_id,
           (SELECT min(e.priority) FROM store_entries AS e
            WHERE e.slot_id = f.slot_id AND e.state = 0 AND e.priority > f.priority)
    FROM found AS f
    WHERE f.priority IS NOT NULL
)
SELECT f.slot_id, f.priority,
       (SELECT min(e.at_ms) FROM store_entries AS e
        WHERE e.slot_id = f.slot_id AND e.state = 0 AND e.priority = f.priority) AS due_ms
FROM found AS f
WHERE f.priority IS NOT NULL
ORDER BY f.slot_id, f.priority
