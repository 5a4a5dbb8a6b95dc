-- Row: (slot_id, id, rest_ms, rank): a prepared member rests. A row of an earlier rest may be left over.
INSERT OR REPLACE INTO store_rests (slot_id, id, rest_ms, rank) VALUES (?, ?, ?, ?)
