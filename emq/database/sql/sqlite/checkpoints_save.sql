-- Save a batch of checkpoints, fenced: a row with a higher epoch stays as it is, a watermark never moves back.
-- Marks stay with the watermark that they were saved with: a lower one may be of what the store has held since it came
-- back empty, if the database has lost that its owner went back.
-- :rows is JSON [[queue, epoch, watermark, [[start, end], ...], [[offset, digest], ...],
-- [[seconds, watermark], ...]], ...], each queue once.
-- The number of affected rows is the number accepted.
INSERT INTO emq_checkpoints (environment, queue, epoch, watermark, finished, marks, notes)
SELECT :environment, r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value -> 3, r.value -> 4, r.value -> 5
FROM json_each(:rows) AS r
WHERE true
ON CONFLICT (environment, queue) DO UPDATE SET
    epoch = excluded.epoch,
    finished = CASE WHEN excluded.watermark >= emq_checkpoints.watermark
                    THEN excluded.finished ELSE emq_checkpoints.finished END,
    marks = CASE WHEN excluded.marks = '[]' OR excluded.watermark < emq_checkpoints.watermark THEN emq_checkpoints.marks
                 ELSE excluded.marks END,
    notes = excluded.notes,
    watermark = max(excluded.watermark, emq_checkpoints.watermark)
WHERE emq_checkpoints.epoch <= excluded.epoch
