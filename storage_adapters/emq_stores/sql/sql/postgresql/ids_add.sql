-- Columns: group_id, id, until_ms: ids of publishes. A row whose time is over may be left.
INSERT INTO store_ids (group_id, id, until_ms)
SELECT * FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS r (group_id, id, until_ms)
ON CONFLICT (group_id, id) DO UPDATE SET until_ms = excluded.until_ms
