-- Write topics, over whatever rows of these names are there (a tombstone keeps its deleted_at).
-- :rows is JSON [[name, body], ...]; :version the catalog version that makes them visible as changed.
INSERT INTO emq_topics (environment, name, body, version, live, deleted_at)
SELECT :environment, r ->> 0, r ->> 1, :version, 1, 0
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
ON CONFLICT (environment, name) DO UPDATE
SET body = excluded.body, version = excluded.version, live = 1
