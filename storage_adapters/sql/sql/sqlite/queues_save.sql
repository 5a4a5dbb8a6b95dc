-- Row: (head, tail, sealed, armed, id). The row is locked.
UPDATE store_queues SET head = ?, tail = ?, sealed = ?, armed = ? WHERE id = ?
