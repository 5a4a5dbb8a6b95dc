-- Columns: instance, name. The time stamp is the server's, which also decides when they are removed.
INSERT INTO store_woken (instance, name, at_ms)
SELECT given.*, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM unnest(%s::text[], %s::text[]) AS given
ON CONFLICT DO NOTHING
