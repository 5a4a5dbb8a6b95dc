-- Row: (group_id, id, until_ms): ids of publishes. A row whose time is over may be left.
INSERT OR REPLACE INTO store_ids (group_id, id, until_ms) VALUES (?, ?, ?)
