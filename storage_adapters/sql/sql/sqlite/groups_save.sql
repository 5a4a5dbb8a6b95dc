-- Row: (epoch, armed, armed_rank, id). The row is locked.
UPDATE store_groups SET epoch = ?, armed = ?, armed_rank = ? WHERE id = ?
