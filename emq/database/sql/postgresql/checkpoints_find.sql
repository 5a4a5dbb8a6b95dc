-- Checkpoints of :queues (JSON array of names).
SELECT c.queue, c.epoch, c.watermark, c.finished
FROM jsonb_array_elements_text(CAST(:queues AS jsonb)) AS q (queue)
JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = q.queue
