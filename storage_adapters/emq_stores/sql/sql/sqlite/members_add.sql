-- Row: (slot_id, id, rank, member, body, note, merged): waiting members.
INSERT INTO store_members (slot_id, id, rank, member, body, note, merged, state, reason, history)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, '', '')
