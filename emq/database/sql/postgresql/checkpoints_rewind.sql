-- Set watermarks outright, fenced like checkpoints_save: the store has lost what was behind them.
-- :rows is JSON as for checkpoints_save. Rows are locked in the order of their queues.
WITH r AS (
    SELECT c.queue, r AS row
    FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
    JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r ->> 0
    WHERE c.epoch <= CAST(r ->> 1 AS bigint)
    ORDER BY c.queue
    FOR UPDATE OF c
)
UPDATE emq_checkpoints AS c
SET epoch = CAST(r.row ->> 1 AS bigint), watermark = CAST(r.row ->> 2 AS bigint),
    finished = CAST(r.row -> 3 AS text), marks = CAST(r.row -> 4 AS text), notes = CAST(r.row -> 5 AS text)
FROM r
WHERE c.environment = :environment AND c.queue = r.queue
