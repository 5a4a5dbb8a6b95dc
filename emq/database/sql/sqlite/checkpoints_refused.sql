-- Queues of the batch (:rows as in checkpoints_save) for which a higher epoch is stored.
-- CROSS JOIN keeps the short list outside and the table's key inside; the planner cannot know how long the list is.
SELECT c.queue
FROM json_each(:rows) AS r
CROSS JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r.value ->> 0
WHERE c.epoch > r.value ->> 1
