-- Write topics, over whatever rows of these names are there (a tombstone keeps its deleted_at).
-- :rows is JSON [[name, body, 1 (awake) or 2 (asleep)], ...]; :version the catalog version that makes them visible as
-- changed. One that falls asleep has ended for whoever follows the catalog, who sees no changes of those asleep.
INSERT INTO emq_topics (environment, name, body, version, live, deleted_at)
SELECT :environment, r ->> 0, r ->> 1, :version, (r ->> 2)::integer, 0
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
ON CONFLICT (environment, name) DO UPDATE
SET body = excluded.body, live = excluded.live,
    version = CASE WHEN emq_topics.live = 2 AND excluded.live = 2 THEN emq_topics.version ELSE excluded.version END,
    deleted_at =
        CASE WHEN emq_topics.live = 1 AND excluded.live = 2 THEN excluded.version ELSE emq_topics.deleted_at END
