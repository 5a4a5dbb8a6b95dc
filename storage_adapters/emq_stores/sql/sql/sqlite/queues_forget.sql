-- Row: (id). The row is locked, and the queue is empty.
DELETE FROM store_queues WHERE id = ?
