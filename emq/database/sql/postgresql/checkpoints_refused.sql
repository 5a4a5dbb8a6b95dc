-- Queues of the batch (:rows as in checkpoints_save) for which a higher epoch is stored.
SELECT c.queue
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r ->> 0
WHERE c.epoch > CAST(r ->> 1 AS bigint)
