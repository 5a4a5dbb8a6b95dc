-- Save a batch of checkpoints, fenced: a row with a higher epoch stays as it is, a watermark never moves back.
-- Marks stay with the watermark that they were saved with: a lower one may be of what the store has held since it came
-- back empty, if the database has lost that its owner went back.
-- :rows is JSON [[queue, epoch, watermark, [[start, end], ...], [[offset, digest], ...],
-- [[seconds, watermark], ...]], ...], each queue once.
-- The number of affected rows is the number accepted. Rows are locked in the order of their queues.
INSERT INTO emq_checkpoints (environment, queue, epoch, watermark, finished, marks, notes)
SELECT :environment, r ->> 0, CAST(r ->> 1 AS bigint), CAST(r ->> 2 AS bigint), CAST(r -> 3 AS text), CAST(r -> 4 AS text), CAST(r -> 5 AS text)
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS r
ORDER BY 2
ON CONFLICT (environment, queue) DO UPDATE SET
    epoch = excluded.epoch,
    finished = CASE WHEN excluded.watermark >= emq_checkpoints.watermark
                    THEN excluded.finished ELSE emq_checkpoints.finished END,
    marks = CASE WHEN excluded.marks = '[]' OR excluded.watermark < emq_checkpoints.watermark THEN emq_checkpoints.marks
                 ELSE excluded.marks END,
    notes = excluded.notes,
    watermark = greatest(excluded.watermark, emq_checkpoints.watermark)
WHERE emq_checkpoints.epoch <= excluded.epoch
