-- One queue's messages in [first, end), in order: (queue_id, first, end). Run once for each queue; inside the
-- process, this costs less than one statement for all, and the caller can stop once it has enough bytes. The cast is
-- for a body that another program wrote as text: SQLite keeps the type that it is given.
SELECT msg_offset, CAST(body AS BLOB) FROM store_messages WHERE queue_id = ? AND msg_offset >= ? AND msg_offset < ?
ORDER BY msg_offset
