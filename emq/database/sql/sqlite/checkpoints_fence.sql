-- Raise the epochs of checkpoints that are there; :rows is JSON [[queue, epoch], ...], each queue once.
UPDATE emq_checkpoints
SET epoch = r.value ->> 1
FROM json_each(:rows) AS r
WHERE emq_checkpoints.environment = :environment
  AND emq_checkpoints.queue = r.value ->> 0
  AND emq_checkpoints.epoch < r.value ->> 1
