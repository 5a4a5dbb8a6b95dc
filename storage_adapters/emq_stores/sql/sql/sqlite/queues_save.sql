-- Row: (head, tail, sealed, layout, armed, id). The row is locked.
UPDATE store_queues SET head = ?, tail = ?, sealed = ?, layout = ?, armed = ? WHERE id = ?
