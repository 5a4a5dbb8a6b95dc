-- Row: (queue_id, msg_offset, body).
INSERT INTO store_messages (queue_id, msg_offset, body) VALUES (?, ?, ?)
