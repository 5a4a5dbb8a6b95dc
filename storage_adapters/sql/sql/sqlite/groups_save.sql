-- Row: (epoch, armed, armed_rank, fold, waiting, id). The row is locked.
UPDATE store_groups SET epoch = ?, armed = ?, armed_rank = ?, fold = ?, waiting = ? WHERE id = ?
