-- Row: (instance, name).
INSERT INTO store_woken (instance, name, at_ms)
VALUES (?, ?, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) ON CONFLICT DO NOTHING
