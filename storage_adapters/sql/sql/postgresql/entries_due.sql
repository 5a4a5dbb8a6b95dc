-- The first due entries of many slots. :claims is JSON [[slot_id, limit], ...]; answers (number of the claim from 0,
-- id, body), in order of number, due time, id.
SELECT w.number - 1 AS number, e.id, e.body
FROM jsonb_array_elements(CAST(:claims AS jsonb)) WITH ORDINALITY AS w (claim, number)
CROSS JOIN LATERAL (
    SELECT x.id, x.body, x.at_ms
    FROM store_entries AS x
    WHERE x.slot_id = CAST(w.claim ->> 0 AS bigint) AND x.state = 0 AND x.at_ms <= :now_ms
    ORDER BY x.at_ms, x.id
    LIMIT CAST(w.claim ->> 1 AS bigint)
) AS e
ORDER BY w.number, e.at_ms, e.id
