-- Columns: queue_id, msg_offset, body.
INSERT INTO store_messages (queue_id, msg_offset, body)
SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::bytea[])
