-- Messages of many queues, in order, up to the message that brings the bodies to :max_bytes.
-- :asked is JSON [[queue_id, first, end], ...]; returns (number of the range from 0, msg_offset, body).
WITH found AS (
    SELECT w.number - 1 AS number, m.msg_offset, m.body,
           sum(octet_length(m.body)) OVER (ORDER BY w.number, m.msg_offset ROWS UNBOUNDED PRECEDING) AS gathered
    FROM jsonb_array_elements(CAST(:asked AS jsonb)) WITH ORDINALITY AS w (span, number)
    CROSS JOIN LATERAL (
        SELECT x.msg_offset, x.body
        FROM store_messages AS x
        WHERE x.queue_id = CAST(w.span ->> 0 AS bigint)
          AND x.msg_offset >= CAST(w.span ->> 1 AS bigint)
          AND x.msg_offset < CAST(w.span ->> 2 AS bigint)
        ORDER BY x.msg_offset
        LIMIT CAST(w.span ->> 2 AS bigint) - CAST(w.span ->> 1 AS bigint)
    ) AS m
)
SELECT number, msg_offset, body
FROM found
WHERE gathered - octet_length(body) < :max_bytes
ORDER BY number, msg_offset
