-- Take the next number of the tree's changes: the time in microseconds, or one more than the last number.
-- The row stays locked until the transaction ends, so that changes happen one after the other.
-- A database that loses rows forgets the counter, too. By the time, it gives no number a second time.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (environment, key) DO UPDATE SET value = greatest(emq_meta.value + 1, excluded.value)
RETURNING value
