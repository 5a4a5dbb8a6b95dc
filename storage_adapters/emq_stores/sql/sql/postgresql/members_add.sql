-- Columns: slot_id, id, rank, member, body, note, merged: waiting members.
INSERT INTO store_members (slot_id, id, rank, member, body, note, merged, state, reason, history)
SELECT r.*, 0, '', ''
FROM unnest(%s::bigint[], %s::text[], %s::float8[], %s::bytea[], %s::bytea[], %s::bytea[], %s::bigint[]) AS r
