-- Arm queues for :instance, each only if its tail is still the one that the reader saw and no newer owner has armed it.
-- In SQLite neither can have changed: the transaction has had the only write lock since before it read. The conditions
-- are those of PostgreSQL, where both can.
-- :rows is JSON [[id, tail, epoch], ...]; returns the ids that are armed now.
UPDATE store_queues AS q
SET armed = :instance, armed_epoch = r.value ->> 2
FROM json_each(:rows) AS r
WHERE q.id = r.value ->> 0 AND q.tail = r.value ->> 1 AND q.armed_epoch <= r.value ->> 2
RETURNING id
