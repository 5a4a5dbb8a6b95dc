-- Row: (epoch, armed, armed_due_ms, id). The row is locked.
UPDATE store_groups SET epoch = ?, armed = ?, armed_due_ms = ? WHERE id = ?
