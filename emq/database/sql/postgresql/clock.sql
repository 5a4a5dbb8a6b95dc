-- Microseconds since the epoch, now: not when the transaction began.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
