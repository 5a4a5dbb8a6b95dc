-- Count a counter of an environment up by one; answers the new value.
-- The row stays locked until the transaction ends, which is what puts all writers of a catalog in line.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, 1)
ON CONFLICT (environment, key) DO UPDATE SET value = emq_meta.value + 1
RETURNING value
