-- Row: (epoch, armed, armed_rank, fold, waiting, sealed, id). The row is locked.
UPDATE store_groups SET epoch = ?, armed = ?, armed_rank = ?, fold = ?, waiting = ?, sealed = ? WHERE id = ?
