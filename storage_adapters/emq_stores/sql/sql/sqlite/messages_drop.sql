-- Row: (queue_id, first, end): drops the offsets in [first, end).
DELETE FROM store_messages WHERE queue_id = ? AND msg_offset >= ? AND msg_offset < ?
