-- The server's clock, in milliseconds since 1970.
SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)
