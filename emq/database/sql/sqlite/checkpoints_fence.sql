-- Raise the epochs of checkpoints that are there; :rows is JSON [[queue, epoch], ...], each queue once.
-- As an upsert, whose CROSS JOIN keeps the short list outside and the table's key inside: for UPDATE ... FROM the planner
-- walks over all checkpoints, and for each of them over the list.
INSERT INTO emq_checkpoints (environment, queue, epoch, watermark, finished, marks, notes)
SELECT c.environment, c.queue, r.value ->> 1, c.watermark, c.finished, c.marks, c.notes
FROM json_each(:rows) AS r
CROSS JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r.value ->> 0
WHERE c.epoch < r.value ->> 1
ON CONFLICT (environment, queue) DO UPDATE SET epoch = excluded.epoch
