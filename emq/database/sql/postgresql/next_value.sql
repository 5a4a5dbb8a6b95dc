-- Count a counter of an environment up by one, and at least to :least; answers the new value.
-- The row stays locked until the transaction ends, which is what puts all writers of a catalog in line.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, :least)
ON CONFLICT (environment, key) DO UPDATE SET value = greatest(emq_meta.value + 1, excluded.value)
RETURNING value
