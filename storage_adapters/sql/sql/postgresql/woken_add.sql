-- Columns: instance, name, at_ms.
INSERT INTO store_woken (instance, name, at_ms)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[])
ON CONFLICT DO NOTHING
