-- Columns: instance, name. Stamped by the server's clock, by which they are forgotten.
INSERT INTO store_woken (instance, name, at_ms)
SELECT given.*, (extract(epoch FROM clock_timestamp()) * 1000)::bigint
FROM unnest(%s::text[], %s::text[]) AS given
ON CONFLICT DO NOTHING
