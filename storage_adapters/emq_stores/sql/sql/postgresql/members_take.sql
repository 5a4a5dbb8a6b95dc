-- The first members of many slots that may be claimed, up to the member that brings the bytes to :max_bytes.
-- :asked is JSON [[slot_id, last rank, limit], ...]; returns (number of the claim from 0, id, rank, member, body, note,
-- merged, reason, history), in order of number, rank, id.
-- The query looks for twins in prepare one by one, by their key. An anti-join, or the other index, which `+ 0` hides,
-- might read all prepared members for each member.
WITH found AS (
    SELECT c.number - 1 AS number, w.*,
           coalesce(octet_length(w.member), 0) + coalesce(octet_length(w.body), 0)
               + coalesce(octet_length(w.note), 0) AS size,
           sum(coalesce(octet_length(w.member), 0) + coalesce(octet_length(w.body), 0)
               + coalesce(octet_length(w.note), 0)) OVER (ORDER BY c.number, w.rank, w.id ROWS UNBOUNDED PRECEDING) AS gathered
    FROM (
        SELECT j.number, CAST(j.claim ->> 0 AS bigint) AS slot_id, CAST(j.claim ->> 1 AS float8) AS last,
               CAST(j.claim ->> 2 AS bigint) AS most
        FROM jsonb_array_elements(CAST(:asked AS jsonb)) WITH ORDINALITY AS j (claim, number)
    ) AS c
    CROSS JOIN LATERAL (
        SELECT m.id, m.rank, m.member, m.body, m.note, m.merged, m.reason, m.history
        FROM store_members AS m
        WHERE m.slot_id = c.slot_id AND m.state = 0 AND m.rank <= c.last
          AND (SELECT t.state FROM store_members AS t WHERE t.slot_id = c.slot_id AND t.id = m.id AND t.state + 0 = 1) IS NULL
        ORDER BY m.rank, m.id
        LIMIT c.most
    ) AS w
)
SELECT number, id, rank, member, body, note, merged, reason, history
FROM found
WHERE gathered - size < :max_bytes
ORDER BY number, rank, id
