-- For each slot: the rank of the first member that may be claimed, now or later, and the end of the slot's first rest;
-- NULL if there is none. :slots is a JSON array of ids.
-- The query looks for twins in prepare one by one, by their key. An anti-join, or the other index, which `+ 0` hides,
-- might read all prepared members for each member.
SELECT s.id AS slot_id, (
    SELECT m.rank
    FROM store_members AS m
    WHERE m.slot_id = s.id AND m.state = 0
      AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = s.id AND t.id = m.id AND t.state + 0 = 1) IS NULL
    ORDER BY m.rank, m.id
    LIMIT 1
) AS rank, (SELECT min(t.rest_ms) FROM store_rests AS t WHERE t.slot_id = s.id) AS rest_ms
FROM (SELECT CAST(j AS bigint) AS id FROM jsonb_array_elements_text(CAST(:slots AS jsonb)) AS j) AS s
