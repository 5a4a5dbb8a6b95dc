-- Take the next number of the changes of the tree: the time in microseconds, or the last number plus :step.
-- The row stays locked until the transaction ends, so that changes happen one after the other.
-- A database that loses rows forgets the counter, too. By time and random steps, it gives no number twice.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
ON CONFLICT (environment, key) DO UPDATE SET value = greatest(emq_meta.value + :step, excluded.value)
RETURNING value
