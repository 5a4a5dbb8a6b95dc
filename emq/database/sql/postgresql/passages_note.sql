-- Note passages. :rows is JSON [[topic, group, layout, tails, passed], ...].
INSERT INTO emq_passages (environment, topic, group_index, layout, tails, passed)
SELECT :environment, r ->> 0, CAST(r ->> 1 AS int), CAST(r ->> 2 AS bigint), r ->> 3, CAST(r ->> 4 AS int)
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
ORDER BY 2, 3, 4
ON CONFLICT (environment, topic, group_index, layout) DO UPDATE
SET passed = greatest(emq_passages.passed, excluded.passed)
