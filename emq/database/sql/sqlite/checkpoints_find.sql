-- Checkpoints of :queues (JSON array of names).
-- CROSS JOIN keeps the short list outside and the table's key inside; the planner cannot know how long the list is.
SELECT c.queue, c.epoch, c.watermark, c.finished, c.marks, c.notes
FROM json_each(:queues) AS q
CROSS JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = q.value
