-- Columns: instance, name. The time stamp is the server's; the server's clock also decides when wake-ups are removed.
INSERT INTO store_woken (instance, name, at_ms)
SELECT given.*, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM unnest(%s::text[], %s::text[]) AS given
ON CONFLICT DO NOTHING
