-- Add one to a counter of an environment, raise it to at least :least, and return the new value.
-- The row stays locked until the transaction ends, so that the writers of a catalog wait for each other.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, :least)
ON CONFLICT (environment, key) DO UPDATE SET value = max(emq_meta.value + 1, excluded.value)
RETURNING value
