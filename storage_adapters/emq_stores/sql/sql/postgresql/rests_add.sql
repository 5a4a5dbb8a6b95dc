-- Columns: slot_id, id, rest_ms, rank: prepared members rest. Rows of earlier rests may be left over.
INSERT INTO store_rests (slot_id, id, rest_ms, rank)
SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::float8[]) AS r (slot_id, id, rest_ms, rank)
ON CONFLICT (slot_id, id) DO UPDATE SET rest_ms = excluded.rest_ms, rank = excluded.rank
