-- The first 256 bytes of the body at one offset of a queue: (queue_id, offset). Run once for each.
SELECT substr(CAST(body AS BLOB), 1, 256) FROM store_messages WHERE queue_id = ? AND msg_offset = ?
