-- Note up to when somebody looks at a topic; a later time than the noted one counts.
INSERT INTO emq_meta (environment, key, value)
VALUES (:environment, :key, :value)
ON CONFLICT (environment, key) DO UPDATE SET value = max(emq_meta.value, excluded.value)
