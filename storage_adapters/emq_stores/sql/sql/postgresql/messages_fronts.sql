-- The first 256 bytes of the bodies at some offsets. :asked is JSON [[queue_id, offset], ...]; returns (number of the
-- offset from 0, front), for offsets that hold a message.
SELECT r.number - 1, substring(m.body FROM 1 FOR 256)
FROM jsonb_array_elements(CAST(:asked AS jsonb)) WITH ORDINALITY AS r (place, number)
JOIN store_messages AS m
  ON m.queue_id = CAST(r.place ->> 0 AS bigint) AND m.msg_offset = CAST(r.place ->> 1 AS bigint)
