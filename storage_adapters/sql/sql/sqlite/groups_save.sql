-- Row: (epoch, armed, armed_rank, fold, id). The row is locked.
UPDATE store_groups SET epoch = ?, armed = ?, armed_rank = ?, fold = ? WHERE id = ?
