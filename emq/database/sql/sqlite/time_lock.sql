-- Lock a note of the environment's time until the transaction ends; it begins as 0, which means that no time is noted.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, 0)
ON CONFLICT (environment, key) DO UPDATE SET value = emq_meta.value
