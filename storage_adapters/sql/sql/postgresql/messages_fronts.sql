-- The first 256 bytes of the bodies at some offsets. :rows is JSON [[queue_id, offset], ...].
SELECT m.queue_id, m.msg_offset, substring(m.body FROM 1 FOR 256)
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN store_messages AS m ON m.queue_id = CAST(r ->> 0 AS bigint) AND m.msg_offset = CAST(r ->> 1 AS bigint)
