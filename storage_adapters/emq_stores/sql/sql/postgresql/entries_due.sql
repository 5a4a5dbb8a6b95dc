-- The first due entries of some priorities of lanes, up to the entry that brings the bodies to :max_bytes.
-- :asked is JSON [[slot_id, priority, now_ms, limit], ...]; returns (number of the request from 0, id, body), in order
-- of number, due time, id.
WITH found AS (
    SELECT w.number - 1 AS number, e.id, e.body, e.at_ms,
           sum(octet_length(e.body)) OVER (ORDER BY w.number, e.at_ms, e.id ROWS UNBOUNDED PRECEDING) AS gathered
    FROM jsonb_array_elements(CAST(:asked AS jsonb)) WITH ORDINALITY AS w (probe, number)
    CROSS JOIN LATERAL (
        SELECT x.id, x.body, x.at_ms
        FROM store_entries AS x
        WHERE x.slot_id = CAST(w.probe ->> 0 AS bigint) AND x.state = 0
          AND x.priority = CAST(w.probe ->> 1 AS int) AND x.at_ms <= CAST(w.probe ->> 2 AS bigint)
        ORDER BY x.at_ms, x.id
        LIMIT CAST(w.probe ->> 3 AS bigint)
    ) AS e
)
SELECT number, id, body
FROM found
WHERE gathered - octet_length(body) < :max_bytes
ORDER BY number, at_ms, id
