-- The body at an offset of a queue.
SELECT m.body
FROM store_queues AS q
JOIN store_messages AS m ON m.queue_id = q.id AND m.msg_offset = :msg_offset
WHERE q.environment = :environment AND q.name = :queue
