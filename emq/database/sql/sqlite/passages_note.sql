-- Note passages. :rows is JSON [[topic, group, layout, tails, passed], ...].
INSERT INTO emq_passages (environment, topic, group_index, layout, tails, passed)
SELECT :environment, r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4
FROM json_each(:rows) AS r
WHERE true
ON CONFLICT (environment, topic, group_index, layout) DO UPDATE
SET passed = max(emq_passages.passed, excluded.passed)
