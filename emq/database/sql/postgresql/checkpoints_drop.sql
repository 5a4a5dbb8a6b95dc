-- Forget the checkpoints of :queues (JSON array of names).
DELETE FROM emq_checkpoints
WHERE environment = :environment
  AND queue IN (SELECT jsonb_array_elements_text(CAST(:queues AS jsonb)))
