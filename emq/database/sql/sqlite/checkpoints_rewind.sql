-- Set watermarks outright, fenced like checkpoints_save: the store has lost what was behind them.
-- :rows is JSON as for checkpoints_save. An upsert for the reason that checkpoints_fence tells.
INSERT INTO emq_checkpoints (environment, queue, epoch, watermark, finished, marks, notes)
SELECT c.environment, c.queue, r.value ->> 1, r.value ->> 2, r.value -> 3, r.value -> 4, r.value -> 5
FROM json_each(:rows) AS r
CROSS JOIN emq_checkpoints AS c ON c.environment = :environment AND c.queue = r.value ->> 0
WHERE c.epoch <= r.value ->> 1
ON CONFLICT (environment, queue) DO UPDATE SET
    epoch = excluded.epoch, watermark = excluded.watermark, finished = excluded.finished,
    marks = excluded.marks, notes = excluded.notes
