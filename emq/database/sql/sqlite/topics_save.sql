-- Write topics, over whatever rows of these names are there (a tombstone keeps its deleted_at).
-- :rows is JSON [[name, body], ...]; :version the catalog version that makes them visible as changed.
INSERT INTO emq_topics (environment, name, body, version, live, deleted_at)
SELECT :environment, r.value ->> 0, r.value ->> 1, :version, 1, 0
FROM json_each(:rows) AS r
WHERE true
ON CONFLICT (environment, name) DO UPDATE
SET body = excluded.body, version = excluded.version, live = 1
