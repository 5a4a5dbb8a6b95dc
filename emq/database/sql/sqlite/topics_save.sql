-- Write topics, over whatever rows of these names are there (a tombstone keeps its deleted_at).
-- :rows is JSON [[name, body, 1 (awake) or 2 (asleep)], ...]; :version the catalog version that makes them visible as
-- changed. One that falls asleep has ended for whoever follows the catalog, who sees no changes of those asleep.
INSERT INTO emq_topics (environment, name, body, version, live, deleted_at)
SELECT :environment, r.value ->> 0, r.value ->> 1, :version, r.value ->> 2, 0
FROM json_each(:rows) AS r
WHERE true
ON CONFLICT (environment, name) DO UPDATE
SET body = excluded.body, live = excluded.live,
    version = CASE WHEN emq_topics.live = 2 AND excluded.live = 2 THEN emq_topics.version ELSE excluded.version END,
    deleted_at =
        CASE WHEN emq_topics.live = 1 AND excluded.live = 2 THEN excluded.version ELSE emq_topics.deleted_at END
