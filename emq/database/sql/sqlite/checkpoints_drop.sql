-- Forget the checkpoints of :queues (JSON array of names).
DELETE FROM emq_checkpoints
WHERE environment = :environment AND queue IN (SELECT value FROM json_each(:queues))
