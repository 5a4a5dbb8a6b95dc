-- For each slot: the rank of the first member that may be claimed, now or later, and the end of the slot's first rest;
-- NULL if there is none. :slots is a JSON array of ids.
SELECT s.value AS slot_id, (
    SELECT m.rank
    FROM store_members AS m
    WHERE m.slot_id = s.value AND m.state = 0
      AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = m.slot_id AND t.id = m.id AND t.state = 1) IS NULL
    ORDER BY m.rank, m.id
    LIMIT 1
) AS rank, (SELECT min(t.rest_ms) FROM store_rests AS t WHERE t.slot_id = s.value) AS rest_ms
FROM json_each(:slots) AS s
