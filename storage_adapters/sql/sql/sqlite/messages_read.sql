-- One queue's messages in [first, end), in order: (queue_id, first, end). Run once for each queue; inside the
-- process that costs less than one statement for all, and the caller can stop when it has enough bytes. The cast is for a
-- body that somebody else wrote as text: SQLite keeps what it is given.
SELECT msg_offset, CAST(body AS BLOB) FROM store_messages WHERE queue_id = ? AND msg_offset >= ? AND msg_offset < ?
ORDER BY msg_offset
