-- Raise the epochs of checkpoints that are there; :rows is JSON [[queue, epoch], ...], each queue once.
-- The rows are locked in the order of their queues first, as by checkpoints_save.
WITH r AS (
    SELECT c.queue, CAST(r ->> 1 AS bigint) AS epoch
    FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
    JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r ->> 0
    WHERE c.epoch < CAST(r ->> 1 AS bigint)
    ORDER BY c.queue
    FOR UPDATE OF c
)
UPDATE emq_checkpoints AS c
SET epoch = r.epoch
FROM r
WHERE c.environment = :environment AND c.queue = r.queue AND c.epoch < r.epoch
