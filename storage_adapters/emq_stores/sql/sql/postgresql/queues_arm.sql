-- Arm queues for :instance, each only if its tail is still the one that the reader saw and no newer owner has armed it.
-- :rows is JSON [[id, tail, epoch], ...]; returns the ids that are armed now. The query locks rows in the order of ids,
-- and so waits for puts under way; the new tail of such a put then fails the condition.
WITH wanted AS (
    SELECT CAST(r ->> 0 AS bigint) AS id, CAST(r ->> 1 AS bigint) AS tail, CAST(r ->> 2 AS bigint) AS epoch
    FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
), locked AS (
    SELECT q.id, w.epoch
    FROM store_queues AS q
    JOIN wanted AS w ON q.id = w.id AND q.tail = w.tail AND q.armed_epoch <= w.epoch
    WHERE q.id = ANY (ARRAY(SELECT id FROM wanted))
    ORDER BY q.id
    FOR NO KEY UPDATE OF q
)
UPDATE store_queues AS q
SET armed = :instance, armed_epoch = l.epoch
FROM locked AS l
WHERE q.id = l.id
RETURNING q.id
