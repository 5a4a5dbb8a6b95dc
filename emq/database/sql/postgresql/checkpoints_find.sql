-- Checkpoints of :queues (JSON array of names).
SELECT c.queue, c.epoch, c.watermark, c.finished, c.marks, c.notes
FROM emq_checkpoints AS c
WHERE c.environment = :environment
  AND c.queue = ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:queues AS jsonb))))
