-- The first offset of a queue from :first on that holds a message; NULL if there is none.
SELECT min(msg_offset) AS msg_offset FROM store_messages WHERE queue_id = :queue_id AND msg_offset >= :first
