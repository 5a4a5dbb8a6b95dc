-- Row: (token, slot_id, id): a waiting member is prepared now.
UPDATE store_members SET state = 1, rank = ? WHERE slot_id = ? AND id = ? AND state = 0
