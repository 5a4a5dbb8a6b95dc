-- Row: (instance, name, at_ms).
INSERT INTO store_woken (instance, name, at_ms) VALUES (?, ?, ?) ON CONFLICT DO NOTHING
