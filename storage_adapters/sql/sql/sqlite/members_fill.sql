-- Row: (body, note, slot_id, id): of waiting members.
UPDATE store_members SET body = ?, note = ? WHERE slot_id = ? AND id = ? AND state = 0
