-- Set a watermark outright, forget what was finished above it, keep the epoch (0 if there was none).
INSERT INTO emq_checkpoints (environment, queue, epoch, watermark, finished)
VALUES (:environment, :queue, 0, :watermark, '[]')
ON CONFLICT (environment, queue) DO UPDATE SET watermark = excluded.watermark, finished = '[]', notes = '[]'
RETURNING epoch
